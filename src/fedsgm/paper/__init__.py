"""The paper's figures and its table, a module each; ``fedsgm reproduce`` runs them and writes a page of results."""
