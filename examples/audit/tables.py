"""Adult as a table with names, numbers, texts and missing values, and two pipelines for it.

    PRIVBENCH_DATA=~/data python tables.py FOLDER

writes FOLDER/people-members.parquet and FOLDER/people-nonmembers.parquet.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder

from privbench_plugins.datasets.adult import FIELDS

SIZE = 2000


def pipeline() -> Pipeline:
    """Fit a forest to the members: texts one-hot, numbers as they are."""
    return _fitted(RandomForestClassifier(100, random_state=0), "income")


def ages() -> Pipeline:
    """Fit a regression to the members: how old they are, from all else."""
    return _fitted(RandomForestRegressor(100, random_state=0), "age")


def _fitted(
    forest: RandomForestClassifier | RandomForestRegressor,
    label: str,
) -> Pipeline:
    table = pd.read_parquet(Path(os.environ.get("AUDIT_ROWS", "rows")) / "people-members.parquet")
    x, y = table.drop(columns=label), table[label]
    texts = list(x.select_dtypes(exclude="number").columns)
    columns = ColumnTransformer(
        [("texts", OneHotEncoder(handle_unknown="ignore"), texts)], remainder="passthrough"
    )
    return make_pipeline(columns, forest).fit(x, y)


def main(folder: Path) -> None:
    """Draw members and nonmembers at random; no two rows are equal but for the survey's weight."""
    file = Path(os.environ["PRIVBENCH_DATA"]).expanduser() / "adult" / "adult.data"
    table = pd.read_csv(file, names=[*FIELDS, "income"], skipinitialspace=True, na_values="?")
    table = table.drop(columns="fnlwgt")
    table = table.drop_duplicates(subset=list(table.columns[:-1])).sample(frac=1, random_state=0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, start in {"members": 0, "nonmembers": SIZE}.items():
        table[start : start + SIZE].to_parquet(folder / f"people-{name}.parquet", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
