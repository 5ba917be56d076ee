"""Looped GPT-BERT, 4 layers x 12 loops, with Parcae's stable injection: 12,330,004 parameters.

Shows: masked next-token and causal rows in one batch (1:3), trained with LAMB on the BabyLM
strict-small budget of ten epochs over 10M words. It differs from `looped_gpt_bert_paper.py` in the
injection alone.

Command: python -m looped_lm.main --config=configs/looped_gpt_bert.py --workdir=runs/looped \
  --config.data.paths=babylm_10M
Hardware: one accelerator. Time: not measured for this config; the paper's 4 x 12 run is about 93
PFLOP. Result to expect: not measured yet.

`:babylm` ends at 100M words instead and keeps the weights at the word counts that BabyLM asks for
(1M to 10M by 1M, 20M to 100M by 10M); docs/huggingface.md says how they are published.
`:tiny` is the same system at a size for tests: seconds on a CPU, on generated English.
"""

from ml_collections import config_dict

from looped_lm.errors import UserError
from looped_lm.train.milestones import BABYLM_WORDS

EVALUATION_DATA = "evaluation_data/full_eval"


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment; `arguments` is "", "babylm" or "tiny"."""
  config = config_dict.ConfigDict(
    {
      "seed": 42,
      "data": {
        "paths": (),
        "document": "line",
        "text_field": "text",
        "cleaning": ("normalize_whitespace",),
        "prepared_dir": "",
        "packing": "lines",
        "seq_len": 128,
        "validation_fraction": 0.01,
        "validation_paths": (),
      },
      "tokenizer": {
        "path": "",
        "vocab_size": 8192,
        "min_frequency": 2,
        "add_prefix_space": True,
      },
      "model": {
        "embed_dim": 384,
        "prelude_layers": 0,
        "core_layers": 4,
        "coda_layers": 0,
        # Loops of evaluation, and of training while the depth is fixed.
        "num_loops": 12,
        # Another name alone changes how depth is drawn: fixed, poisson, lognormal_poisson, uniform,
        # log_uniform. Each reads those of the settings that it has.
        "depth": {
          "name": "fixed",
          "grad_loops": 0,
          "per": "sequence",
          "mean_loops": 12.0,
          "min_loops": 1,
          "max_loops": 36,
          "log_std": 0.5,
          "curriculum": "none",
          "start_loops": 1.0,
          "curriculum_fraction": 1.0,
        },
        # What the backward pass recomputes: none, attention, dots, full; auto takes the first of
        # them that fits the memory, and says which.
        "remat": "auto",
        "compute_dtype": "bfloat16",
        "block": {
          "name": "gpt_bert",
          "num_heads": 6,
          "mlp_dim": 1280,
          "num_buckets": 32,
          "max_distance": 512,
          "attention_dropout_rate": 0.1,
          "hidden_dropout_rate": 0.1,
          "norm_eps": 1e-5,
          "dwa_scope": "layer",
          "position_lookup": "one_hot",
        },
        "injection": {"name": "diagonal"},
        "attention": {"name": "dense"},
        "embed": {"norm": True, "norm_eps": 1e-5, "dropout_rate": 0.1},
        "head": {"name": "transform", "norm_eps": 1e-5, "dropout_rate": 0.1},
      },
      # "torch_weights" starts from a folder: path, and whether it may hold another network.
      "init": {"name": "scratch", "path": "", "allow_other_settings": False},
      "objective": {
        "name": "hybrid",
        "mntp_fraction": 0.25,
        "mask_rate_start": 0.30,
        "mask_rate_end": 0.15,
        "token_weighted": False,
        "z_loss_weight": 1e-4,
        # Supervised positions whose logits exist at a time; 0 makes those of all positions at once.
        "chunk_tokens": 0,
      },
      "optim": {
        "name": "lamb",
        "learning_rate": 0.0141,
        "warmup_fraction": 0.016,
        "decay_fraction": 2600 / 4080,
        "floor_fraction": 0.1,
        "weight_decay": 0.1,
        "b1": 0.9,
        "b2": 0.98,
        "eps": 1e-8,
        "clip_norm": 2.0,
      },
      "train": {
        # Exactly one of the four is above 0.
        "total_steps": 0,
        "total_epochs": 10.0,
        "total_words": 0,
        "total_tokens": 0,
        "batch_size": 256,
        "micro_batches": 1,
        "ema_decay": 0.999,
        # Leaves out updates of steps whose loss or gradient is so many deviations above the last
        # 128 steps' mean; 0 leaves out none.
        "skip_sigmas": 0.0,
        "log_every_steps": 20,
        "eval_every_steps": 500,
        # Besides: at each step that passes a multiple of so many words; 0 never.
        "eval_every_words": 0,
        "save_every_steps": 500,
        "keep_latest": 2,
        # Weights kept for good at the first step that has shown so many words.
        "save_at_words": (),
        # A step that takes longer is reported; 0 watches nothing.
        "watchdog_seconds": 0.0,
      },
      "evals": {
        # Asked at every evaluation, and at the end of the run alone.
        "names": ("held_out", "unigram", "injection", "minimal_pairs_generated"),
        "final_names": ("loop_diagnostics", "logit_lens", "attention_maps"),
        "weights": "raw",
        "batch_size": 64,
        "num_batches": 16,
        "best_metric": "eval/clm/loss_nats",
        # How texts are scored: causal, mntp, mlm; and loops to read out besides the last.
        "backends": ("causal",),
        "loops": (),
        # Whether relative distances beyond the longest trained one read as that one.
        "clamp_distance": False,
        # Where the BabyLM pipeline's own scripts put its sets; `docs/evaluation.md` says more.
        "blimp": {"path": f"{EVALUATION_DATA}/blimp_filtered", "most_per_group": 0},
        "blimp_supplement": {"path": f"{EVALUATION_DATA}/supplement_filtered", "most_per_group": 0},
        "ewok": {"path": f"{EVALUATION_DATA}/ewok_filtered", "most_per_group": 0},
        "ewok_target_swap": {"path": f"{EVALUATION_DATA}/ewok_filtered", "most_per_group": 0},
        "entity_tracking": {"path": f"{EVALUATION_DATA}/entity_tracking", "most_per_group": 0},
        "entity_tracking_all": {"path": f"{EVALUATION_DATA}/entity_tracking", "most_per_group": 0},
        "comps": {"path": f"{EVALUATION_DATA}/comps", "most_per_group": 0},
        "global_piqa_parallel": {"path": f"{EVALUATION_DATA}/global_piqa_parallel"},
        "global_piqa_nonparallel": {"path": f"{EVALUATION_DATA}/global_piqa_nonparallel"},
        "wug": {"path": f"{EVALUATION_DATA}/wug_adj_nominalization"},
        "reading": {"path": f"{EVALUATION_DATA}/reading/reading_data.csv"},
        # Asks all weights of train.save_at_words, at the end of a run and by --mode=eval.
        "aoa": {"path": f"{EVALUATION_DATA}/aoa/cdi_childes.json", "human_path": ""},
        "perplexity": {"path": ""},
        # Fine-tunes, which takes long: never during training. 0 takes the task's own.
        "glue": {
          "path": f"{EVALUATION_DATA}/glue_filtered",
          "tasks": ("boolq", "multirc", "rte", "wsc", "mrpc", "qqp", "mnli"),
          # A labelled set of your own: .jsonl files, one or two text fields.
          "custom": {
            "train": "",
            "valid": "",
            "text_fields": ("text",),
            "label_field": "label",
            "metric": "accuracy",
          },
          "learning_rate": 3e-5,
          "warmup_fraction": 0.06,
          "floor_fraction": 0.1,
          "weight_decay": 0.01,
          "b1": 0.9,
          "b2": 0.999,
          "dropout_rate": 0.1,  # Of the head.
          "batch_size": 0,
          "epochs": 0,
          "max_length": 512,
          "token": "last",  # Or "first".
          "backend": "causal",  # Or "bidirectional".
          "seed": 42,
        },
      },
      # pmap: every device holds the whole state. mesh: devices = data x fsdp x tensor.
      "parallel": {
        "strategy": "pmap",
        "fsdp": 1,
        "tensor": 1,
        "lost_process_seconds": 100,
      },
      # Of --mode=generate alone.
      "generate": {
        "task": "continue",  # Or "infill": fills every <mask>.
        "prompts": (),
        "prompt_file": "",
        "batch_size": 8,
        "max_new_tokens": 64,
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop": (),
        "seed": 0,
        "num_loops": 0,  # 0 takes model.num_loops.
        "cache": "full",
        "cache_budget": 0,
        "halting": "none",
        "halting_threshold": 0.0,
        "halting_patience": 2,
        "halting_min_loops": 1,
      },
    }
  )
  if arguments == "tiny":
    return tiny(config)
  if arguments == "babylm":
    config.train.total_epochs = 0.0
    config.train.total_words = BABYLM_WORDS[-1]
    config.train.save_at_words = BABYLM_WORDS
    return config
  if arguments:
    raise UserError(
      f"looped_gpt_bert.py:{arguments} is unknown; the arguments are 'babylm' and 'tiny'."
    )
  return config


def tiny(config: config_dict.ConfigDict) -> config_dict.ConfigDict:
  """The same system at a size that trains in seconds on a CPU."""
  config.data.paths = ("corpus:generated-small",)
  config.data.seq_len = 32
  config.data.validation_fraction = 0.05
  config.tokenizer.vocab_size = 600
  config.model.embed_dim = 32
  config.model.num_loops = min(3, config.model.num_loops)
  config.model.depth.mean_loops = 3.0
  config.model.depth.max_loops = 6
  config.model.core_layers = 1
  config.model.compute_dtype = "float32"
  config.model.block.num_heads = 2
  config.model.block.mlp_dim = 64
  config.model.block.num_buckets = 8
  config.model.block.max_distance = 32
  config.train.total_epochs = 0.0
  config.train.total_steps = 20
  config.train.batch_size = 8
  config.train.log_every_steps = 5
  config.train.eval_every_steps = 10
  config.train.save_every_steps = 10
  config.evals.batch_size = 8
  config.evals.num_batches = 2
  config.evals.final_names = ()
  return config
