"""The official file formats: what each task asks of a line. The lines are made up here."""

import json

import pytest

from looped_lm import plugins
from looped_lm.errors import UserError
from looped_lm.evals import moved_boxes

BLIMP = {
  "sentence_good": "Dogs run.",
  "sentence_bad": "Dogs runs.",
  "field": "syntax_semantics",
  "UID": "agreement_1",
  "linguistics_term": "agreement",
}
EWOK = {
  "Domain": "spatial",
  "Context1": "It is up.",
  "Context2": "It is down.",
  "Target1": "I see it above.",
  "Target2": "I see it below.",
  "ContextType": "direct",
  "ContextDiff": "antonym",
  "TargetDiff": "swap",
}
BOX = {
  "input_prefix": "Box 1 contains ",
  "options": ["the cup.", "the hat.", "the key.", "the egg.", "the map."],
  "numops": 3,
}
COMPS = {
  "prefix_acceptable": "A whale",
  "prefix_unacceptable": "A horse",
  "property_phrase": "can swim.",
}
PIQA = {"prompt": "To sweep,", "solution0": "use a broom.", "solution1": "use a map.", "label": 1}
PIQA |= {"example_id": "p7", "solution2": "use soup.", "solution3": "use ice."}


def items(tmp_path, subject, task, lines, stem="x"):
  tmp_path.joinpath(f"{stem}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
  return plugins.load("evals", task).Evaluator(subject=subject, path=str(tmp_path)).items


def scored(item):
  return [option.text[option.start :] for option in item.options]


def test_blimp_scores_whole_sentences_by_uid(tmp_path, subject):
  (item,) = items(tmp_path, subject, "blimp", [BLIMP])
  assert scored(item) == list(item.answers) == ["Dogs run.", "Dogs runs."]
  assert (item.group, item.label) == ("agreement_1", 0)
  assert item.tags == {"field": "syntax/semantics", "linguistics_term": "agreement"}


def test_the_supplement_goes_by_file(tmp_path, subject):
  pair = {name: BLIMP[name] for name in ("sentence_good", "sentence_bad")}
  (item,) = items(tmp_path, subject, "blimp_supplement", [pair], stem="turn_taking")
  assert (item.group, item.tags) == ("turn_taking", {})


def test_ewok_swaps_contexts_and_used_to_swap_targets(tmp_path, subject):
  (now,) = items(tmp_path, subject, "ewok", [EWOK])
  assert [option.text for option in now.options] == list(now.answers)
  assert now.answers == ("It is up. I see it above.", "It is down. I see it above.")
  assert scored(now) == [" I see it above."] * 2
  (before,) = items(tmp_path, subject, "ewok_target_swap", [EWOK])
  assert scored(before) == list(before.answers) == [" I see it above.", " I see it below."]
  assert before.options[1].text == "It is up. I see it below."
  assert now.group == before.group == "spatial"


def test_entity_tracking_leaves_out_nothing_unless_all_is_asked_for(tmp_path, subject):
  nothing = {**BOX, "options": ["nothing.", *BOX["options"][1:]]}
  (item,) = items(tmp_path, subject, "entity_tracking", [BOX, nothing], stem="move_contents")
  assert scored(item) == list(item.answers) == BOX["options"]
  assert item.group == "move_contents_3_ops"
  everything = items(tmp_path, subject, "entity_tracking_all", [BOX, nothing], stem="move_contents")
  assert len(everything) == 2


def test_entity_tracking_weighs_files_alike():
  groups = {"regular_0_ops": 10.0, "regular_1_ops": 30.0, "move_contents_0_ops": 80.0}
  assert moved_boxes.mean_of_files(groups) == (20.0 + 80.0) / 2


@pytest.mark.parametrize(
  ("stem", "group"), [("comps_base", "base"), ("comps_wugs_dist-before", "wugs_dist_before")]
)
def test_comps_scores_the_property(tmp_path, subject, stem, group):
  (item,) = items(tmp_path, subject, "comps", [COMPS], stem=stem)
  assert item.answers == ("A whale can swim.", "A horse can swim.")
  assert scored(item) == ["can swim."] * 2
  assert item.group == group


@pytest.mark.parametrize(("part", "count"), [("parallel", 4), ("nonparallel", 2)])
def test_global_piqa_scores_solutions_per_token(tmp_path, subject, part, count):
  (item,) = items(tmp_path, subject, f"global_piqa_{part}", [PIQA])
  assert scored(item) == list(item.answers)
  assert scored(item)[:2] == [" use a broom.", " use a map."]
  assert (len(item.options), item.label, item.group) == (count, 1, "p7")
  assert plugins.load("evals", f"global_piqa_{part}").Evaluator.length_normalized
  with pytest.raises(UserError, match=rf"x.jsonl:1: 'label' is 5; it must lie in \[0, {count}\)"):
    items(tmp_path, subject, f"global_piqa_{part}", [{**PIQA, "label": 5}])


FIRST_LINE = {
  "blimp": BLIMP,
  "ewok": EWOK,
  "ewok_target_swap": EWOK,
  "entity_tracking": BOX,
  "entity_tracking_all": BOX,
  "comps": COMPS,
  "global_piqa_parallel": PIQA,
  "global_piqa_nonparallel": PIQA,
}


@pytest.mark.parametrize("task", FIRST_LINE)
def test_a_missing_field_and_a_missing_set_are_named(tmp_path, subject, task):
  line = FIRST_LINE[task]
  dropped = next(iter(line))
  with pytest.raises(UserError, match=f"x.jsonl:2: there is no '{dropped}'"):
    items(tmp_path, subject, task, [line, {k: v for k, v in line.items() if k != dropped}])
  evaluator = plugins.load("evals", task).Evaluator
  with pytest.raises(UserError, match=f"evals.{task}.path='nowhere' does not exist. Get the set "):
    evaluator(subject=subject, path="nowhere")
