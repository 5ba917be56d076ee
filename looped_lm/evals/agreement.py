"""How far predicted labels agree with the right ones."""

from jaxtyping import Int
import numpy as np

METRICS = ("accuracy", "f1", "mcc")


def figures(
  predicted_N: Int[np.ndarray, " N"], label_N: Int[np.ndarray, " N"], *, num_classes: int
) -> dict[str, float]:
  """Accuracy, F1 and Matthews' correlation.

  F1 is that of the last of two classes (1), or the mean over more classes; a class that is neither
  there nor predicted has 0. The correlation is Gorodkin's for more than two; where all predictions
  or all labels are the same it is 0.
  """
  confusion_CC = np.zeros((num_classes, num_classes), np.int64)
  np.add.at(confusion_CC, (label_N, predicted_N), 1)
  there_C, said_C = confusion_CC.sum(axis=1), confusion_CC.sum(axis=0)
  hits_C, total = np.diag(confusion_CC), len(label_N)
  f1_C = 2 * hits_C / np.maximum(there_C + said_C, 1)
  spread = float(total**2 - said_C @ said_C) * float(total**2 - there_C @ there_C)
  covariance = float(hits_C.sum() * total - there_C @ said_C)
  return {
    "accuracy": float(hits_C.sum()) / total,
    "f1": float(f1_C[1] if num_classes == 2 else f1_C.mean()),
    "mcc": covariance / spread**0.5 if spread else 0.0,
  }
