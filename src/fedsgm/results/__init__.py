"""What a run gives, and how a person sees it: the result, its verdict, its pictures, runs side by side."""
