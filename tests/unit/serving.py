"""Serves a forest by FastAPI in every format that an endpoint may have, and refuses other bodies.

uvicorn tests.unit.serving:app
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Body, FastAPI, Response
from pydantic import BaseModel, ConfigDict, StrictInt
from tests.unit.test_own_model import MEMBERS, forest

app = FastAPI()
model = forest(MEMBERS)
Rows = list[list[float]]


class Strict(BaseModel):
    """A body without any other field."""

    model_config = ConfigDict(extra="forbid")


class Inputs(Strict):
    """Of the default format."""

    inputs: Rows


class Tensor(Strict):
    """Of the Open Inference Protocol."""

    name: str
    shape: list[StrictInt]
    datatype: Literal["FP32"]
    data: Rows


class Tensors(Strict):
    """Of the Open Inference Protocol."""

    inputs: list[Tensor]


class Instances(Strict):
    """Of TensorFlow Serving."""

    instances: Rows


class TopK(Strict):
    """Of Hugging Face."""

    top_k: StrictInt


class Labelled(Strict):
    """Of Hugging Face."""

    inputs: Rows
    parameters: TopK


class Features(Strict):
    """Of SageMaker."""

    features: list[float]


class Records(Strict):
    """Of SageMaker."""

    instances: list[Features]


class Tokens(Strict):
    """Of OpenAI."""

    model: Literal["my-encoder"]
    input: list[list[StrictInt]]
    encoding_format: Literal["float"]


def posteriors(rows: Any) -> Any:
    """Return posteriors (n, 2) of rows."""
    return model.predict_proba(np.asarray(rows, np.float32))


def embed(rows: Any) -> Any:
    """Return embeddings (n, 4) of rows."""
    return np.asarray(rows, np.float32)[:, 2:].astype(np.float64) / 7


def encoder() -> Any:
    """Return the encoder."""
    return embed


@app.post("/privbench")
def own(body: Inputs) -> Any:
    """Answer ``outputs``."""
    return {"outputs": posteriors(body.inputs).tolist()}


@app.post("/kserve")
def kserve(body: Tensors) -> Any:
    """Answer a flat tensor."""
    made = posteriors(np.reshape(body.inputs[0].data, body.inputs[0].shape))
    flat = {"shape": made.shape, "datatype": "FP64", "data": made.ravel().tolist()}
    return {"model_name": "forest", "outputs": [{"name": "output-0", **flat}]}


@app.post("/tf-serving")
def tf_serving(body: Instances) -> Any:
    """Answer ``predictions``."""
    return {"predictions": posteriors(body.instances).tolist()}


@app.post("/hf")
def hf(body: Labelled) -> Any:
    """Answer labels, the likeliest first."""
    return [[{"label": f"LABEL_{c}", "score": row[c]} for c in np.argsort(-row)]
            for row in posteriors(body.inputs)]  # fmt: skip


@app.post("/torchserve")
def torchserve(body: list[float]) -> Any:
    """Answer the classes of one row, the likeliest first."""
    (row,) = posteriors([body])
    return {str(c): row[c] for c in np.argsort(-row)}


@app.post("/sagemaker")
def sagemaker(body: Records) -> Any:
    """Answer scores and classes."""
    made = posteriors([one.features for one in body.instances])
    return {"predictions": [{"score": row.tolist(), "predicted_label": int(row.argmax())}
                            for row in made]}  # fmt: skip


@app.post("/sagemaker-csv")
def sagemaker_csv(body: Annotated[bytes, Body(media_type="text/csv")]) -> Any:
    """Answer lines."""
    made = posteriors([line.split(",") for line in body.decode().splitlines()])
    lines = "".join(",".join(map(repr, row)) + "\n" for row in made.tolist())
    return Response(lines, media_type="text/csv")


@app.post("/openai-embeddings")
def embeddings(body: Tokens) -> Any:
    """Answer embeddings, the last first."""
    made = enumerate(embed(body.input).tolist())
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in made]
    return {"object": "list", "model": body.model, "data": data[::-1]}
