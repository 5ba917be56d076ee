"""From the `model` group of a config to a model.

Every system is a point in one space: the block, the injection and the attention pattern are
plug-ins, the sizes of prelude, core and coda are numbers. `skeleton` is what they are put into.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
import numpy as np

from looped_lm import plugins
from looped_lm.errors import UserError
from looped_lm.models.skeleton import LoopedLM, Settings
from looped_lm.nn import cache, embed, heads, recurrence, states
from looped_lm.nn import depth as depths
from looped_lm.nn import watch as watching
from looped_lm.nn.decode import Decoding
from looped_lm.nn.embed import Embed
from looped_lm.nn.heads import HEADS
from looped_lm.nn.loops import REMAT
from looped_lm.nn.precision import COMPUTE_DTYPES
from looped_lm.nn.recurrence import Recurrence
from looped_lm.types import Continuation, Decoded, Inputs, Model, Output, Params

_MODEL_FIELDS = (
  "embed_dim",
  "prelude_layers",
  "core_layers",
  "coda_layers",
  "num_loops",
  "depth",
  "remat",
  "compute_dtype",
  "block",
  "injection",
  "attention",
  "embed",
  "head",
  # Optional: what surrounds the core in every loop, and in what the core's layers differ.
  "recurrence",
  "core_block",
  # Optional: whether a learned gate says when to leave the loop.
  "exit_gate",
)


def build(settings: Settings, *, vocab_size: int, longest_distance: int | None = None) -> Model:
  """Builds a model from the `model` group of a config.

  Args:
    settings: The group as a plain dict.
    vocab_size: V.
    longest_distance: Relative distances beyond it read as it; None lets all be what they are.

  Raises:
    UserError: A setting that cannot work; nothing has been compiled.
  """
  module = assemble(settings, vocab_size=vocab_size, longest_distance=longest_distance)
  injection_file = plugins.load("injection", settings["injection"]["name"])
  diagnostics = getattr(injection_file, "diagnostics", lambda _: {})
  return _as_functions(module, settings["num_loops"], vocab_size, diagnostics)


def at_depth(model: Model, num_loops: int) -> Model:
  """The same model with another number of loops where none are asked for.

  Raises:
    UserError: `num_loops` is no whole number of at least 1.
  """
  if isinstance(num_loops, bool) or not isinstance(num_loops, int | np.integer) or num_loops < 1:
    raise UserError(f"num_loops={num_loops!r} must be a whole number of at least 1.")
  default_loops = int(num_loops)

  def encode(
    params: Params,
    inputs: Inputs,
    *,
    key: Key[Array, ""] | None = None,
    num_loops: int | Int[Array, " B"] | None = None,
    **settings: Any,
  ) -> Output:
    if key is None and num_loops is None:
      num_loops = default_loops
    return model.encode(params, inputs, key=key, num_loops=num_loops, **settings)

  return dataclasses.replace(model, encode=encode, num_loops=default_loops)


def assemble(
  settings: Settings, *, vocab_size: int, longest_distance: int | None = None
) -> LoopedLM:
  """The module behind `build`, with the same arguments and errors."""
  _check(settings)
  if longest_distance is not None:
    _check_distances(settings["block"]["name"])
  head_name = settings["head"]["name"]
  injection_file = plugins.load("injection", settings["injection"]["name"])
  block, shared = _block(settings, vocab_size=vocab_size)
  sizes = {"embed_dim": settings["embed_dim"], "vocab_size": vocab_size}
  common = {**sizes, "num_loops": settings["num_loops"], "compute_dtype": settings["compute_dtype"]}
  core_block = dict(settings.get("core_block", {}))
  plugins.settings(block[0], core_block, where="model.core_block")
  return LoopedLM(
    embed=_fields(Embed, sizes, settings["embed"], where="model.embed"),
    head=(
      HEADS[head_name],
      _fields(HEADS[head_name], common, settings["head"], where="model.head"),
    ),
    shared=shared,
    block=block,
    core_block=core_block,
    recurrence_=_fields(
      Recurrence, common, settings.get("recurrence", {}), where="model.recurrence"
    ),
    injection_=(
      injection_file.Injection,
      _fields(
        injection_file.Injection,
        {k: v for k, v in common.items() if k != "num_loops"},
        settings["injection"],
        where="model.injection",
      ),
    ),
    prelude_layers=settings["prelude_layers"],
    core_layers=settings["core_layers"],
    coda_layers=settings["coda_layers"],
    depth=depths.make(settings.get("depth", {"name": "fixed"}), num_loops=settings["num_loops"]),
    remat=settings["remat"],
    exit_gate=settings.get("exit_gate", False),
    longest_distance=longest_distance,
  )


def _check_distances(block: str) -> None:
  known = [
    name
    for name in plugins.names("blocks")
    if getattr(plugins.load("blocks", name), "HAS_RELATIVE_DISTANCES", False)
  ]
  if block not in known:
    raise UserError(
      f"clamp_distance=True needs a block with learned relative distances ({', '.join(known)}); "
      f"model.block.name={block!r} has none. Leave it at False."
    )


def _block(settings: Settings, *, vocab_size: int) -> tuple[Any, Any]:
  """Class and settings of the block, and of what its layers share."""
  file = plugins.load("blocks", settings["block"]["name"])
  attention = _plugin("attention", "Attention", settings["attention"])
  common = {
    "embed_dim": settings["embed_dim"],
    "vocab_size": vocab_size,
    "attention": attention,
    "compute_dtype": settings["compute_dtype"],
  }
  values = _fields(file.Block, common, settings["block"], where="model.block")
  shared = None
  if hasattr(file, "Shared"):
    fields = {field.name for field in dataclasses.fields(file.Shared)}
    shared = (file.Shared, {k: v for k, v in values.items() if k in fields})
  return (file.Block, values), shared


def _fields(cls: type, common: Settings, given: Settings, *, where: str) -> dict[str, Any]:
  """A class's settings: what the model knows, where the class has a field for it, then its own."""
  known = {field.name for field in dataclasses.fields(cls)}
  own = plugins.settings(cls, _without_name(given), where=where)
  return {**{k: v for k, v in common.items() if k in known}, **own}


def _as_functions(
  module: LoopedLM, default_loops: int, vocab_size: int, diagnostics: Callable[..., Any]
) -> Model:
  """The module's methods as pure functions of its parameters."""

  def apply(method: str, params: Params, *arguments: Any) -> Any:
    return module.apply({"params": params}, *arguments, method=method)

  def init(key: Key[Array, ""]) -> Params:
    row = jnp.zeros((1, 8), jnp.int32)
    inputs = Inputs(
      tokens_BT=row, order_BT=row, segments_BT=row + 1, row_B=jnp.zeros((1,), jnp.int32)
    )
    return module.init(key, inputs, mutable="params")["params"]

  def draw_loops(row_B, *, key, progress=1.0):
    loops = module.depth.draw(row_B, key=key, progress=progress)
    return jnp.broadcast_to(jnp.asarray(loops, jnp.int32), row_B.shape)

  def encode(
    params: Params,
    inputs: Inputs,
    *,
    key: Key[Array, ""] | None = None,
    num_loops: int | Int[Array, " B"] | None = None,
    keep_states: bool = False,
    progress: Float[Array, ""] | float = 1.0,
    watch: Sequence[str] = (),
    read_BK: Int[Array, "B K"] | None = None,
  ) -> Output:
    depth = module.depth
    if num_loops is not None:
      loops = _checked_loops(num_loops, inputs.row_B, max_loops=depth.max_loops)
    elif key is None:
      loops = default_loops
    else:
      loops = depth.draw(inputs.row_B, key=key, progress=progress)
    max_loops = loops if isinstance(loops, int) else depth.max_loops
    if isinstance(loops, int) and key is not None and 0 < depth.grad_loops < loops:
      # In training the last loops alone carry gradient, however their number came about.
      loops = jnp.full(inputs.row_B.shape, loops, jnp.int32)
    assert read_BK is None or key is None, "Dropout is drawn for all positions of a row."
    arguments = (inputs, key, loops, max_loops, keep_states, read_BK)
    if not watch:
      return apply("encode", params, *arguments)
    assert isinstance(loops, int), "Loops of each row cannot be watched."
    output, seen = module.apply(
      {"params": params}, *arguments, method="encode", mutable=list(watch)
    )
    return output.replace(watched={name: watching.collected(seen, name) for name in watch})

  def finish(params, h_BTD, inputs):
    return apply("finish", params, h_BTD, inputs)

  def readout(params, hidden_BTD, row_B, *, key=None):
    return apply("readout", params, hidden_BTD, row_B, key)

  def prepare(params, hidden_BTD, row_B, *, key=None):
    return apply("prepare", params, hidden_BTD, row_B, key)

  def project(x, weights):
    return apply("project", {}, x, weights)

  def make_cache(params: Params, batch: int, capacity: int, decoding: Decoding) -> Any:
    chunk = Continuation(
      tokens_BT=jnp.zeros((batch, 1), jnp.int32),
      start=jnp.int32(0),
      real_BS=jnp.ones((batch, capacity), bool),
    )
    variables = jax.eval_shape(
      lambda key: module.init(key, chunk, decoding, method="decode"), jax.random.key(0)
    )
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), variables[cache.COLLECTION])
    _, made = module.apply({"params": params}, chunk, method="fix", mutable=[cache.FIXED])
    return {cache.COLLECTION: empty, cache.FIXED: made.get(cache.FIXED, {})}

  def decode(
    params: Params, past: Any, chunk: Continuation, decoding: Decoding
  ) -> tuple[Decoded, Any]:
    variables = {"params": params, **past}
    decoded, changed = module.apply(
      variables, chunk, decoding, method="decode", mutable=[cache.COLLECTION]
    )
    stored = _settled(changed[cache.COLLECTION], chunk, decoding, decoded.executed_loops)
    return decoded, past | {cache.COLLECTION: stored}

  return Model(
    init=init,
    encode=encode,
    finish=finish,
    readout=readout,
    prepare=prepare,
    project=project,
    draw_loops=draw_loops,
    make_cache=make_cache,
    decode=decode,
    exit_probability=(
      (lambda params, h_BTD: apply("exit_probability", params, h_BTD)) if module.exit_gate else None
    ),
    max_length=module.embed.get("max_positions") or None,
    diagnose=lambda params: diagnostics(params.get("injection", {})),
    num_loops=default_loops,
    vocab_size=vocab_size,
  )


def _settled(stored: Any, chunk: Continuation, decoding: Decoding, executed: Int[Array, ""]) -> Any:
  """Gives a chunk's tokens keys and values for the loops that nobody ran."""
  parts = {}
  if decoding.settles:
    parts["core"] = executed - 1
  if decoding.halting.looks_at == "prediction":
    parts["coda"] = executed
  length = chunk.tokens_BT.shape[1]
  return stored | {
    name: cache.settle(stored[name], chunk.start, length, last)
    for name, last in parts.items()
    if name in stored
  }


def _check(settings: Settings) -> None:
  """Checks the skeleton's own settings."""
  for name in settings:
    if name not in _MODEL_FIELDS:
      raise UserError(f"model.{name} is not a setting; model has {list(_MODEL_FIELDS)}.")
  for name in ("embed_dim", "num_loops"):
    if settings[name] < 1:
      raise UserError(f"model.{name}={settings[name]} must be at least 1.")
  for name in ("prelude_layers", "core_layers", "coda_layers"):
    if settings[name] < 0:
      raise UserError(f"model.{name}={settings[name]} must be at least 0.")
  if settings["remat"] not in REMAT:
    raise UserError(f"model.remat={settings['remat']!r} is none of {list(REMAT)}.")
  if settings["compute_dtype"] not in COMPUTE_DTYPES:
    raise UserError(
      f"model.compute_dtype={settings['compute_dtype']!r} is none of {list(COMPUTE_DTYPES)}."
    )
  for group in ("block", "injection", "attention", "head"):
    if "name" not in settings[group]:
      raise UserError(f"model.{group} needs a name.")
  embed_dim = settings["embed_dim"]
  block_file = plugins.load("blocks", settings["block"]["name"])
  block = _without_name(settings["block"])
  block_file.check(block, embed_dim=embed_dim)
  if settings.get("core_block"):
    block_file.check({**block, **settings["core_block"]}, embed_dim=embed_dim)
  pattern = settings["attention"]["name"]
  forms = getattr(plugins.load("attention", pattern), "FORMS_PROBABILITIES", True)
  rates = [block.get("attention_dropout_rate", 0.0)]
  rates.append((settings.get("core_block") or {}).get("attention_dropout_rate", 0.0))
  if max(rates) > 0 and not forms:
    raise UserError(
      f"model.block.attention_dropout_rate={max(rates)} needs probabilities, and attention "
      f"{pattern!r} forms none; set it to 0 or take 'dense'."
    )
  embed.check(settings["embed"], embed_dim=embed_dim)
  heads.check(settings["head"])
  recurrence.check(settings.get("recurrence", {}), embed_dim=embed_dim)
  if settings.get("recurrence", {}).get("exit_norm") == "head":
    if settings["head"].get("norm", "none") == "none":
      raise UserError(
        "model.recurrence.exit_norm='head' needs a head with a norm: model.head.name='linear' with "
        "norm 'rms' or 'layer'."
      )
  depth = settings.get("depth", {"name": "fixed"})
  if settings.get("exit_gate") and (depth["name"] != "fixed" or depth.get("grad_loops")):
    raise UserError(
      f"model.exit_gate=True weighs every loop of every row: it needs model.depth.name='fixed' and "
      f"grad_loops=0, not {depth['name']!r} and {depth.get('grad_loops', 0)}."
    )
  states.check(_without_name(settings["injection"]))
  injection_file = plugins.load("injection", settings["injection"]["name"])
  if hasattr(injection_file, "check"):
    injection_file.check(_without_name(settings["injection"]))


def _checked_loops(
  num_loops: int | Int[Array, " B"], row_B: Int[Array, " B"], *, max_loops: int
) -> int | Int[Array, " B"]:
  """A plain number, or one per row; checks what is known before the program runs."""
  known = not isinstance(num_loops, Tracer)
  if known and np.ndim(num_loops) == 0:
    if num_loops < 1:
      raise UserError(f"num_loops={num_loops} must be at least 1.")
    return int(num_loops)
  if known and (np.min(num_loops) < 1 or np.max(num_loops) > max_loops):
    raise UserError(
      f"num_loops={np.asarray(num_loops).tolist()}: the loops of each row must lie in "
      f"[1, {max_loops}]; the most is model.depth.max_loops, of a fixed depth model.num_loops."
    )
  return jnp.broadcast_to(num_loops, row_B.shape)


def _without_name(settings: Settings) -> dict[str, Any]:
  return {key: value for key, value in settings.items() if key != "name"}


def _plugin(folder: str, role: str, settings: Settings) -> Any:
  """Builds a plug-in that is a plain dataclass."""
  cls = getattr(plugins.load(folder, settings["name"]), role)
  return cls(**plugins.settings(cls, _without_name(settings), where=f"model.{folder}"))
