"""Reads exported folders with PyTorch, in a process of its own: `python read_folder.py JOB RESULT`.

The job is a JSON list of `{folder, class, kwargs, resave, double, calls}`, a call being the
arguments of one forward pass; the result is an npz of `<job>/<call>` logits or hidden states.
"""

import json
import sys
import warnings

import numpy as np


def main(job_file, result_file):
  warnings.simplefilter("ignore")
  import torch
  import transformers

  torch.set_num_threads(1)
  arrays = {"transformers": np.array(transformers.__version__)}
  with open(job_file) as file:
    jobs = json.load(file)
  for number, job in enumerate(jobs):
    auto = getattr(transformers, job["class"])
    options = {"trust_remote_code": True} | job.get("kwargs", {})
    model = auto.from_pretrained(job["folder"], **options).eval()
    if job.get("resave"):
      model.save_pretrained(job["resave"])
      model = auto.from_pretrained(job["resave"], trust_remote_code=True).eval()
    if job.get("double"):
      model = model.double()
    for index, call in enumerate(job["calls"]):
      with torch.no_grad():
        inputs = {
          name: torch.tensor(value) if isinstance(value, list) else value
          for name, value in call.items()
        }
        if "max_new_tokens" in call:
          out = model.generate(**inputs, do_sample=False)
        else:
          out = model(**inputs)
          out = out.logits if "logits" in out else out.last_hidden_state
      arrays[f"{number}/{index}"] = out.numpy()
  np.savez(result_file, **arrays)


if __name__ == "__main__":
  main(*sys.argv[1:])
