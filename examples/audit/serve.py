"""Serves the forest of the examples over HTTP, in the form that ``privbench audit`` asks for.

uvicorn serve:app --port 8000
"""

from __future__ import annotations

import numpy as np
from fastapi import FastAPI
from models import forest
from pydantic import BaseModel

app = FastAPI()
model = forest()


class Query(BaseModel):
    """Rows to classify."""

    inputs: list[list[float]]


@app.post("/predict")
def predict(query: Query) -> dict[str, list[list[float]]]:
    """Return the posteriors of each row."""
    return {"outputs": model.predict_proba(np.array(query.inputs, np.float32)).tolist()}
