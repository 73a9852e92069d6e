"""Makes the run directories that test_kept_runs.py reads: `python tests/system/kept_runs/make.py` writes runs.tar.gz.

Each is of a real launch. They stand for the runs that users have: every later version opens, plots, resumes and forks
them. They are made again only if a version may refuse to resume older runs; needs root and Slurm.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
ARCHIVE = HERE / "runs.tar.gz"
KEPT = ("scripts", "runs", "texts", "pairs.jsonl", "data.csv", "base", "llada", "programs")
"""What the archive has of the project: all but the cache of prepared data."""
TRAINER = "--output_dir programs/trainer --max_steps 20 --save_steps 10 --logging_steps 2 --report_to none"


def main() -> None:
    """Make the runs in a new project, and pack it."""
    sys.path.insert(0, str(TESTS))
    root = Path(tempfile.gettempdir()).resolve() / "nbtools-kept"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("scripts", "runs"):
        (root / name).mkdir(parents=True)
    os.environ |= {"NBTOOLS_ROOT": str(root), "NBTOOLS_QUEUE_DIR": str(root / "queue")}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "NBTOOLS_NO_PICTURE": "1", "HF_HUB_OFFLINE": "1"}
    os.chdir(root)
    make_all(root)
    with tarfile.open(ARCHIVE, "w:gz", compresslevel=9) as archive:
        for path in sorted(files_of(root)):
            content = neutral(path, root)
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.size, entry.mode, entry.mtime = len(content), 0o644, path.stat().st_mtime
            archive.addfile(entry, io.BytesIO(content))
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")


def files_of(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        if parts[0] in KEPT and parts[:2] not in (("runs", ".cache"), ("runs", ".removed")) and path.is_file():
            yield path


def places(root: Path) -> dict[str, str]:
    """The paths of this machine, and what stands for each in the archive; the longest first."""
    import nbtools

    own = {str(root): "@ROOT@", sys.executable: "@PYTHON@", sys.prefix: "@ENVIRONMENT@"}
    return {**own, str(Path(nbtools.__file__).resolve().parents[1]): "@NBTOOLS@"}


def neutral(path: Path, root: Path) -> bytes:
    """A file without paths of this machine; checkpoints stay as they are, for their hashes."""
    content = path.read_bytes()
    if "checkpoints" not in path.relative_to(root).parts:
        for place, name in places(root).items():
            content = content.replace(place.encode(), name.encode())
    return content


def make_all(root: Path) -> None:
    """Launch one run after the other."""
    from waiting import eventually

    import nbtools as nt
    from nbtools.machine.processes import members
    from nbtools.project import Project
    from nbtools.recipes import RECIPES
    from nbtools.run.run import Run

    from slurm_cluster import running_cluster
    from trainings import ADAPTED, TINY, write_base, write_inputs

    project = Project(root)
    for key in ("mlm_pretraining", "text_classification"):
        write_inputs(key, project)
    write_base("masked_diffusion", project)
    (root / "base").rename(root / "llada")
    write_base("mlm_pretraining", project)
    shutil.copytree(TESTS / "programs", root / "programs")

    def script(name: str, key: str, nproc: int = 1, **changes: Any) -> Path:
        config = RECIPES[key].config_class(**{**TINY[key], "keep_last": 2, **changes})
        return nt.write_script(config, name, nt.Launch(nproc_per_node=nproc, gpus=()), project=project)

    def ended(run: Run, state: str = "SUCCEEDED") -> Run:
        eventually(lambda: run.state.is_final)
        assert run.state == state, (run.id, run.state, run.log(50))
        print(run.id, run.state, flush=True)
        return run

    def launched(name: str, what: Any, state: str = "SUCCEEDED", **options: Any) -> Run:
        return ended(nt.launch(what, name=name, **options), state)

    def program(name: str, *args: str) -> Any:
        return nt.Program(script=str(root / "programs" / name), args=args)

    parent = launched("mlm", script("mlm", "mlm_pretraining", 2))
    ended(nt.resume(parent, changes={"max_steps": 9}, name="mlm_longer"))
    ended(nt.resume(parent, 3, changes={"learning_rate": 2e-3}, name="mlm_fork"))
    launched("diffusion", script("diffusion", "masked_diffusion"))
    launched("pairs", script("pairs", "masked_diffusion", dataset="pairs.jsonl"))
    launched("classification", script("classification", "text_classification"))
    launched("distillation", script("distillation", "algorithm_distillation"))
    launched("gan", script("gan", "llm_gan", checkpoint_every=3))
    launched("sharded", script("sharded", "mlm_pretraining", 2, strategy="fsdp"))
    lora: Mapping[str, Any] = {**ADAPTED["mlm_pretraining"], "adapter": "lora", "lora_rank": 2}
    launched("lora", script("lora", "mlm_pretraining", **lora))
    llada: Mapping[str, Any] = {"model_name": "llada", "adapter": "lora", "strategy": "fsdp", "dataset": "pairs.jsonl"}
    launched("llada_sharded_lora", script("llada_sharded_lora", "masked_diffusion", 2, **llada))
    launched("refused", script("refused", "mlm_pretraining", model_name="base", sequence_length=64), "FAILED")

    run = nt.launch(script("stopped", "mlm_pretraining", 2, max_steps=100_000, epochs=100_000), name="stopped")
    eventually(lambda: run.step >= 5)
    run.stop()
    ended(run, "STOPPED")
    run = nt.launch(script("lost", "mlm_pretraining", max_steps=100_000, epochs=100_000), name="lost")
    eventually(lambda: run.checkpoints)
    for process in [*members(run.files)]:
        process.send_signal(signal.SIGKILL)
    ended(run, "LOST")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, str(script("by_hand", "mlm_pretraining"))], check=True)

    launched("epochs", program("epochs.py", "--out_dir", "programs/epochs"), torchrun=False)
    launched("ddp", program("ddp_saves.py", "--out_dir", "programs/ddp"), nproc_per_node=2)
    launched("trainer", program("hf_trainer.py", *TRAINER.split()))
    launched("raises", program("fails.py", "raise"), "FAILED", torchrun=False, max_restarts=1)
    with running_cluster() as cluster:
        os.environ["SLURM_CONF"] = str(cluster.conf)
        launched("slurm", script("slurm", "mlm_pretraining"), cluster=nt.Slurm(gpus_per_node=0))
        long = script("cancelled", "mlm_pretraining", max_steps=100_000, epochs=100_000)
        run = nt.launch(long, name="cancelled", cluster=nt.Slurm(gpus_per_node=0))
        eventually(lambda: run.step >= 5)
        run.stop()
        ended(run, "STOPPED")


if __name__ == "__main__":
    main()
