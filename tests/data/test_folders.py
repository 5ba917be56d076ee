import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from looped_lm.data import folders
from looped_lm.errors import UserError


def fill(folder):
  (folder / "deep").mkdir()
  (folder / "deep" / "a.txt").write_text("some text")
  (folder / "b.bin").write_bytes(b"\0\1")
  return {"format": 1}


def ignore(line):
  del line


def names(folder):
  return sorted(path.name for path in folder.iterdir() if not path.name.endswith("-lock"))


def test_a_folder_is_built_once_and_says_what_is_in_it(tmp_path):
  built = []

  def build(folder):
    built.append(folder)
    return fill(folder)

  for _ in range(2):
    folders.build_once(tmp_path / "new" / "data", build, progress=ignore)
  assert len(built) == 1
  manifest = folders.read_manifest(tmp_path / "new" / "data", verify=True)
  assert manifest["format"] == 1
  assert manifest["files"]["deep/a.txt"]["bytes"] == 9
  assert set(manifest["files"]) == {"deep/a.txt", "b.bin"}
  assert names(tmp_path / "new") == ["data"]
  lock = tmp_path / "new" / ".data-lock"
  lock.unlink()
  folders.build_once(tmp_path / "new" / "data", build, progress=ignore)
  assert not lock.exists(), "what is complete is used where nothing can be written"


def test_nothing_is_left_of_a_build_that_fails(tmp_path):
  def build(folder):
    fill(folder)
    raise ValueError("no")

  with pytest.raises(ValueError, match="no"):
    folders.build_once(tmp_path / "data", build, progress=ignore)
  assert names(tmp_path) == []


def test_a_full_disk_is_one_clear_line(tmp_path):
  def build(folder):
    fill(folder)
    raise OSError(errno.ENOSPC, "No space left on device")

  with pytest.raises(UserError, match=r"the disk is full; nothing was kept.*data.prepared_dir"):
    folders.build_once(tmp_path / "data", build, progress=ignore)
  assert names(tmp_path) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"file cannot be written .*data.prepared_dir"):
    folders.build_once(tmp_path / "file" / "data", fill, progress=ignore)


def test_a_foreign_folder_is_not_overwritten(tmp_path):
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "mine.txt").write_text("mine")
  with pytest.raises(UserError, match=r"holds no manifest.json, so it is not prepared data"):
    folders.build_once(tmp_path / "data", fill, progress=ignore)
  assert (tmp_path / "data" / "mine.txt").read_text() == "mine"
  assert names(tmp_path) == ["data"]


def test_of_builders_that_come_at_once_one_builds_and_the_others_wait(tmp_path):
  inside, built, told, failed = threading.Event(), [], [], []

  def build(folder):
    built.append(folder)
    inside.set()
    time.sleep(0.3)
    return fill(folder)

  def run():
    try:
      folders.build_once(tmp_path / "data", build, progress=told.append)
    except Exception as error:
      failed.append(error)

  threads = [threading.Thread(target=run) for _ in range(3)]
  threads[0].start()
  inside.wait()
  for thread in threads[1:]:
    thread.start()
  for thread in threads:
    thread.join()
  assert not failed
  assert len(built) == 1
  assert len(told) == 2
  assert "waiting" in told[0]
  folders.read_manifest(tmp_path / "data", verify=True)


def test_a_killed_builder_leaves_nothing_that_is_taken_for_complete(tmp_path):
  program = f"""
import pathlib, time
from looped_lm.data import folders
def build(folder):
  (folder / "half.txt").write_text("half")
  print("building", flush=True)
  time.sleep(60)
folders.build_once(pathlib.Path({str(tmp_path)!r}) / "data", build, progress=print)
"""
  with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
    assert process.stdout is not None
    assert process.stdout.readline() == b"building\n"
    os.kill(process.pid, signal.SIGKILL)
  assert not folders.is_complete(tmp_path / "data")
  assert len(names(tmp_path)) == 1, "the half is still there, under another name"
  folders.build_once(tmp_path / "data", fill, progress=ignore)
  assert names(tmp_path) == ["data"], "the next builder cleans up"
  assert names(tmp_path / "data") == ["b.bin", "deep", "manifest.json"]


@pytest.mark.parametrize("verify", [False, True])
def test_damage_is_found_and_the_file_named(verify, tmp_path):
  folders.build_once(tmp_path / "data", fill, progress=ignore)
  path = tmp_path / "data" / "deep" / "a.txt"
  path.write_text("some tex")
  with pytest.raises(UserError, match=r"deep/a.txt has 8 bytes where 9 were written"):
    folders.read_manifest(tmp_path / "data", verify=verify)
  path.write_text("same text")
  if verify:
    with pytest.raises(UserError, match=r"deep/a.txt is damaged: its checksum"):
      folders.read_manifest(tmp_path / "data", verify=True)
  else:
    folders.read_manifest(tmp_path / "data", verify=False)
  path.unlink()
  with pytest.raises(UserError, match=r"deep/a.txt is missing"):
    folders.read_manifest(tmp_path / "data", verify=verify)
  (tmp_path / "data" / "manifest.json").write_text("{")
  with pytest.raises(UserError, match=r"manifest.json is damaged"):
    folders.read_manifest(tmp_path / "data", verify=verify)
  with pytest.raises(UserError, match=r"holds no manifest.json"):
    folders.read_manifest(tmp_path, verify=verify)


def test_other_processes_wait_for_the_manifest_and_not_for_ever(tmp_path):
  def later():
    time.sleep(0.3)
    folders.build_once(tmp_path / "data", fill, progress=ignore)

  thread = threading.Thread(target=later)
  thread.start()
  folders.wait_for(tmp_path / "data", seconds=30, progress=ignore)
  assert folders.is_complete(tmp_path / "data")
  thread.join()
  with pytest.raises(UserError, match=r"other was not prepared within 0.05 s. Process 0"):
    folders.wait_for(tmp_path / "other", seconds=0.05, progress=ignore)


def test_a_copy_is_whole_and_its_manifest_comes_last(tmp_path, monkeypatch):
  folders.build_once(tmp_path / "data", fill, progress=ignore)
  manifest = folders.read_manifest(tmp_path / "data", verify=True)
  copied = []
  really = folders.shutil.copyfileobj

  def watch(reader, writer, length):
    copied.append(os.path.basename(writer.name))
    really(reader, writer, length)

  monkeypatch.setattr(folders.shutil, "copyfileobj", watch)
  folders.copy(tmp_path / "data", tmp_path / "there", manifest=manifest)
  assert copied[-1] == "manifest.json"
  assert folders.read_manifest(tmp_path / "there", verify=True) == manifest
