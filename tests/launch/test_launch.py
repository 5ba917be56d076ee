"""The launch scripts: what they would run, and that a host's shell reads it as it was meant."""

import os
from pathlib import Path
import shlex
import subprocess
import time

import pytest

ROOT = Path(__file__).resolve().parents[2]
TPU = ROOT / "launch/tpu_vm.sh"
LOCAL = ROOT / "launch/local.sh"
VM = {"TPU_NAME": "loops", "TPU_PROJECT": "proj", "TPU_ZONE": "us-east5-b", "TPU_TYPE": "v6e-8"}
WHERE = "--project=proj --zone=us-east5-b"
JOB = ("--config=configs/looped_gpt_bert.py", "--workdir=gs://bucket/loops")

# Words that a shell would split, expand or end a quote at.
HARD = ('--config.data.paths=("a b.txt", "it\'s")', "--config.data.text_field=$HOME")

CREATE = (
  "gcloud compute tpus tpu-vm create loops --accelerator-type=v6e-8 --version=v2-alpha-tpuv6e "
)
INSTALL = f"""\
git -C {ROOT} bundle create -q looped_lm.bundle HEAD
gcloud compute tpus tpu-vm scp looped_lm.bundle loops:looped_lm.bundle --worker=all {WHERE}
gcloud compute tpus tpu-vm ssh loops --worker=all '--command=set -e
git init -q looped_lm
cd looped_lm
git fetch -q ../looped_lm.bundle HEAD
git checkout -q --detach FETCH_HEAD
python3 -m pip install -q --user uv
PATH=$HOME/.local/bin:$PATH
test -x .venv/bin/python || uv venv -q --python 3.11 .venv
uv pip install -q --python .venv/bin/python -e ".[tpu,plots]"' {WHERE}
"""
ALIVE = "kill -0 $(cat run.pid 2>/dev/null) 2>/dev/null"
RUN = f"""\
gcloud compute tpus tpu-vm ssh loops --worker=all '--command=set -e
cd looped_lm
{ALIVE} && {{ echo "$(hostname): already running" >&2; exit 1; }}
nohup .venv/bin/python -u -m looped_lm.main --config=configs/looped_gpt_bert.py \
--workdir=gs://bucket/loops --mode=train >>run.log 2>&1 </dev/null &
echo $! >run.pid' {WHERE}
"""
STATUS = f"""\
gcloud compute tpus tpu-vm describe loops '--format=value(state,health)' {WHERE}
gcloud compute tpus tpu-vm ssh loops --worker=all '--command=cd looped_lm || exit
if {ALIVE}; then echo "$(hostname): running"; \
else echo "$(hostname): not running"; fi
tail -n 3 run.log' {WHERE}
"""
STOP = f"""\
gcloud compute tpus tpu-vm ssh loops --worker=all '--command=cd looped_lm || exit
if {ALIVE}; then kill $(cat run.pid); \
else echo "$(hostname): not running"; fi' {WHERE}
"""
DELETE = f"gcloud compute tpus tpu-vm delete loops --quiet {WHERE}\n"


def call(*command, **variables):
  environment = {k: v for k, v in os.environ.items() if not k.startswith("TPU_")} | variables
  return subprocess.run(
    [str(word) for word in command], capture_output=True, text=True, env=environment, timeout=60
  )


@pytest.mark.parametrize(
  ("words", "shown"),
  [
    (["create"], f"{CREATE}{WHERE}\n"),
    (["create", "--spot"], f"{CREATE}--spot {WHERE}\n"),
    (["install"], INSTALL),
    (["run", *JOB, "--", "--mode=train"], RUN),
    (
      ["resume", *JOB, "--", "--mode=train"],
      f"# unless the VM is READY:\n{DELETE}{CREATE}{WHERE}\n{INSTALL}# in any case:\n{RUN}",
    ),
    (["stop"], STOP),
    (["status"], STATUS),
    (["delete", "--yes"], DELETE),
  ],
  ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_dry_run_prints_every_command(words, shown):
  done = call(TPU, words[0], "--dry-run", *words[1:], **VM)
  assert done.stdout == shown
  assert done.returncode == 0


@pytest.mark.parametrize(
  ("words", "variables", "message"),
  [
    (["crate"], VM, "crate is no command"),
    (["create", "--nam=x"], VM, "--nam=x is no option"),
    (["create", "--name"], VM, "--name needs a value"),
    (["create"], {}, "create needs --name (or TPU_NAME)"),
    (["create"], VM | {"TPU_TYPE": "v9-8"}, "no system image is known for --type v9-8"),
    (["run", "--config=c.py", "--workdir=runs/x"], VM, "--workdir=runs/x must be a gs:// path"),
    (["resume", "--workdir=gs://b/x"], VM, "resume needs --config (or TPU_CONFIG)"),
  ],
)
def test_a_mistake_gets_one_line_and_no_command(words, variables, message):
  done = call(TPU, words[0], "--dry-run", *words[1:], **variables)
  assert done.returncode == 1
  assert message in done.stderr
  assert len(done.stderr.splitlines()) == 1
  assert "gcloud" not in done.stdout


@pytest.fixture
def host(tmp_path):
  """A home folder that plays the VM: `gcloud ssh` runs its --command there, for real."""
  (tmp_path / "bin").mkdir()
  gcloud = tmp_path / "bin/gcloud"
  gcloud.write_text(
    '#!/usr/bin/env bash\nfor word; do case "$word" in --command=*)\n'
    f'  cd {tmp_path} && HOME={tmp_path} exec bash -c "${{word#--command=}}" ;; esac; done\n'
  )
  gcloud.chmod(0o755)
  python = tmp_path / "looped_lm/.venv/bin/python"
  python.parent.mkdir(parents=True)
  python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" >words\nexec sleep 30\n')
  python.chmod(0o755)
  yield tmp_path
  pid = tmp_path / "looped_lm/run.pid"
  if pid.exists():
    subprocess.run(["kill", pid.read_text().strip()], check=False)


def wait_for(path):
  for _ in range(200):
    if path.exists() and path.read_text():
      return path.read_text()
    time.sleep(0.02)
  raise AssertionError(f"{path} did not come")


def test_the_hosts_shell_reads_every_argument_unchanged_and_starts_one_run(host):
  gcloud = VM | {"PATH": f"{host / 'bin'}:{os.environ['PATH']}"}
  first = call(TPU, "run", *JOB, "--", *HARD, **gcloud)
  assert first.returncode == 0, first.stderr
  words = wait_for(host / "looped_lm/words").splitlines()
  assert words == ["-u", "-m", "looped_lm.main", *JOB, *HARD]
  assert ": running" in call(TPU, "status", **gcloud).stdout
  second = call(TPU, "run", *JOB, **gcloud)
  assert second.returncode == 1
  assert "already running" in second.stderr
  assert call(TPU, "stop", **gcloud).returncode == 0
  for _ in range(200):
    if ": not running" in call(TPU, "status", **gcloud).stdout:
      return
    time.sleep(0.02)
  raise AssertionError("the run did not end")


@pytest.mark.parametrize(
  ("state", "verbs"),
  [
    ("READY", "describe ssh"),
    ("PREEMPTED", "describe delete create scp ssh ssh"),
    ("", "describe create scp ssh ssh"),
  ],
)
def test_resume_makes_the_vm_again_only_where_it_is_gone(tmp_path, state, verbs):
  gcloud = tmp_path / "gcloud"
  gcloud.write_text(
    f'#!/usr/bin/env bash\necho "$4" >>{tmp_path / "verbs"}\n'
    f'if [ "$4" = describe ]; then [ -n "{state}" ] && echo "{state}"; fi\n'
  )
  gcloud.chmod(0o755)
  done = call(TPU, "resume", *JOB, **VM, PATH=f"{tmp_path}:{os.environ['PATH']}")
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "verbs").read_text().split() == verbs.split()


@pytest.fixture
def python(tmp_path):
  """Stands in for the interpreter: has every module, and says what it was given."""
  path = tmp_path / "python"
  path.write_text('#!/usr/bin/env bash\n[ "$1" = -c ] && exit 0\nprintf "%s\\n" "$@"\n')
  path.chmod(0o755)
  return str(path)


@pytest.mark.parametrize("where", [[], ["--background"]])
def test_a_local_run_passes_its_arguments_on_and_keeps_a_log(tmp_path, python, where):
  job = ["--config=configs/quickstart.py:tiny", f"--workdir={tmp_path / 'a run'}", *HARD]
  done = call(LOCAL, *where, *job, PYTHON=python)
  assert done.returncode == 0, done.stderr
  log = wait_for(tmp_path / "a run/run.log")
  assert log.splitlines() == ["-u", "-m", "looped_lm.main", *job]


def test_a_local_run_fails_as_its_program_does(tmp_path):
  python = tmp_path / "python"
  python.write_text('#!/usr/bin/env bash\n[ "$1" = -c ] && exit 0\nexit 7\n')
  python.chmod(0o755)
  job = ["--config=c.py", f"--workdir={tmp_path / 'run'}"]
  assert call(LOCAL, *job, PYTHON=str(python)).returncode == 7


def test_two_local_runs_do_not_share_a_workdir(tmp_path, python):
  (tmp_path / "run.pid").write_text(str(os.getpid()))
  done = call(LOCAL, "--config=c.py", f"--workdir={tmp_path}", PYTHON=python)
  assert done.returncode == 1
  assert f"is being trained by process {os.getpid()}" in done.stderr


@pytest.mark.parametrize("missing", ["--config", "--workdir"])
def test_a_local_run_asks_for_what_is_missing(missing):
  given = {"--config": "--config=c.py", "--workdir": "--workdir=runs/x"}
  del given[missing]
  done = call(LOCAL, *given.values())
  assert done.returncode == 1
  assert f"{missing}=" in done.stderr


PUSH = ROOT / "launch/push_checkpoints.sh"


def exports(folder, *names):
  for name in names:
    (folder / name).mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
      (folder / name / file).touch()
  return folder


def pushed(folder, branch, more=""):
  name = f"'{folder}'" if " " in str(folder) else folder
  return (
    f"hf upload me/loops {name} . --repo-type=model --revision={branch} "
    f"--commit-message={branch}{more}\n"
  )


def test_every_milestone_becomes_a_branch_in_the_order_of_its_words(tmp_path):
  folder = exports(tmp_path / "my run", "chck_10M", "chck_1500", "chck_2M", "final", "chck_2M.new")
  job = ["--repo=me/loops", f"--folder={folder}", "--dry-run"]
  shown = [(folder / name, name) for name in ("chck_1500", "chck_2M", "chck_10M")]
  assert call(PUSH, *job).stdout == "".join(pushed(*each) for each in shown)
  done = call(PUSH, *job, "--main", folder / "final", "--private")
  shown = [(folder / "final", "main"), *shown]
  assert done.stdout == "".join(pushed(*each, more=" --private") for each in shown)
  assert done.returncode == 0


def test_a_push_runs_what_its_dry_run_prints_and_no_token_is_in_it(tmp_path):
  folder = exports(tmp_path / "it's", "chck_1M", "chck_2M")
  hf = tmp_path / "bin/hf"
  hf.parent.mkdir()
  hf.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" hf "$@" >>{tmp_path / "words"}\n')
  hf.chmod(0o755)
  job = ["--repo", "me/loops", "--folder", folder]
  path = f"{hf.parent}:{os.environ['PATH']}"
  printed = call(PUSH, *job, "--dry-run", PATH=path, HF_TOKEN="hf_secret").stdout
  assert not (tmp_path / "words").exists()
  done = call(PUSH, *job, PATH=path, HF_TOKEN="hf_secret")
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "words").read_text().splitlines() == shlex.split(printed)
  assert "hf_secret" not in printed + done.stdout + done.stderr


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ([], "say where to: --repo=OWNER/NAME"),
    (["--repo=loops", "--folder=x"], "--repo=loops is not of the form OWNER/NAME"),
    (["--repo=me/loops"], "say what: --folder=DIR"),
    (["--repo=me/loops", "--folder=empty"], "empty has no folder chck_*; write them with --mode="),
    (["--repo=me/loops", "--folder=bad"], "bad/chck_2M is no exported model"),
    (["--repo=me/loops", "--folder=good", "--main=empty"], "empty is no exported model"),
    (["--token=hf_secret"], "a token is no argument; use `hf auth login` or the variable HF_TOKEN"),
    (["--repo"], "--repo needs a value"),
    (["--brnch=x"], "--brnch=x is no option"),
  ],
)
def test_a_push_that_cannot_work_pushes_nothing(tmp_path, words, message):
  exports(tmp_path / "good", "chck_1M")
  exports(tmp_path / "bad", "chck_1M", "chck_2M")
  (tmp_path / "bad/chck_2M/model.safetensors").unlink()
  (tmp_path / "empty").mkdir()
  words = [
    f"{word.split('=')[0]}={tmp_path / word.split('=')[1]}" if word[:3] in ("--f", "--m") else word
    for word in words
  ]
  done = call(PUSH, "--dry-run", *words)
  assert done.returncode == 1
  assert message in done.stderr
  assert len(done.stderr.splitlines()) == 1
  assert done.stdout == ""
  assert "hf_secret" not in done.stderr
