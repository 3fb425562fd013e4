"""AdamW that leaves alone the rows of a table that no text of a batch asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["AdamW"]


class AdamW(torch.optim.AdamW):
    """AdamW; of a parameter whose gradient is sparse (``F.embedding(…, sparse=True)``) only those rows change.

    A step then costs as much as the batch is large, not the table. What a row has learned of its gradients' size
    fades with the steps since it was last met, as if it had been there for all of them. It has no momentum: that
    would have to go on moving rows which no batch holds.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; sparse gradients are used up, so that the dense ones are left for the usual rule."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._rows(parameter, parameter.grad.coalesce(), group)
                    parameter.grad = None
        return super().step(closure)

    def _rows(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["met"] = torch.zeros(len(parameter), device=parameter.device)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        now, (_, fade), rate = float(state["step"]), group["betas"], float(group["lr"])
        rows, values = gradient.indices()[0], gradient.values()  # [U], [U, d]
        gap = (now - state["met"][rows])[:, None]  # [U, 1] steps since a row was met
        second = state["exp_avg_sq"][rows] * fade**gap + (1 - fade) * values.square()  # [U, d]
        state["exp_avg_sq"][rows], state["met"][rows] = second, now
        shrunk = parameter[rows] * (1 - rate * group["weight_decay"]) ** gap
        parameter[rows] = shrunk - rate * values / ((second / (1 - fade**now)).sqrt() + group["eps"])
