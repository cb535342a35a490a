"""Makes applicants.csv, an invented table of loan applications in eight states: ``python examples/applicants.py``."""

from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
rows = 1200
state = rng.choice(["AZ", "CA", "CO", "NM", "NV", "OR", "UT", "WA"], rows, p=[0.1, 0.3, 0.1, 0.04, 0.06, 0.1, 0.1, 0.2])
sex = rng.choice(["female", "male"], rows)
age = rng.integers(20, 70, rows)
work = rng.choice(["salaried", "self-employed", "none", ""], rows, p=[0.6, 0.2, 0.15, 0.05])
income = np.round(np.exp(rng.normal(3.4 + 0.35 * (sex == "male") + 0.3 * (work == "salaried"), 0.4)), 1)
debt = np.round(rng.gamma(2.0, 5.0, rows), 1)
merit = 0.06 * (income - 35) - 0.08 * (debt - 10) + 0.5 * (work == "salaried") + rng.normal(0, 0.8, rows)
table = {
    "state": state,
    "sex": sex,
    "age": age.astype(str),
    "work": work,
    "income": np.where(rng.random(rows) < 0.04, "", income.astype(str)),
    "debt": debt.astype(str),
    "approved": np.where(merit > 0.4, "yes", "no"),
}
lines = [",".join(table), *(",".join(row) for row in zip(*table.values(), strict=True))]
(Path(__file__).parent / "applicants.csv").write_text("\n".join(lines) + "\n")
