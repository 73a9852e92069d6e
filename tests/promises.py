"""The promises of nbtools: 35 faults, what is never changed silently, runs on Slurm, and 75 rows of guides.

A test shows a promise by `@pytest.mark.promise("fault-7")`. `python tests/promises.py` writes the tables of
`tests/README.md` from this file and from the markers.
"""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
README = TESTS / "README.md"

FAULTS: dict[str, tuple[str, str]] = {
    "fault-1": (
        "a rank is killed (SIGKILL)",
        "every other rank is gone within seconds; `FAILED` names rank, host, signal and last step",
    ),
    "fault-2": (
        "a rank is killed, and `max_restarts` allows another attempt",
        "a new torchrun starts from the newest checkpoint that verifies, in the same directory as the next attempt; the curve is one",
    ),
    "fault-3": ("torchrun itself is killed", "every rank ends; `FAILED`"),
    "fault-4": (
        "the supervisor is killed",
        "training continues as `RUNNING`, `stop` works, and a clean end is still recorded",
    ),
    "fault-5": (
        "the kernel is interrupted, restarted or killed",
        "the run continues; a fresh kernel shows the same curve, and the true exit code if it ended meanwhile",
    ),
    "fault-6": ("the Jupyter server ends or is killed", "the run continues"),
    "fault-7": (
        "preemption: SIGTERM to the supervisor or to torchrun",
        "all ranks finish the same step, write one checkpoint and end as `STOPPED`; resuming loses and repeats no step",
    ),
    "fault-8": (
        "more signals, or a kill, in the middle of a save",
        "further SIGTERMs change nothing; after a kill the older checkpoint is complete, and an incomplete one is never listed",
    ),
    "fault-9": (
        "the disk is full at a checkpoint",
        "the incomplete checkpoint is removed, older ones stay, a warning is printed, training continues and later checkpoints are saved",
    ),
    "fault-10": (
        "the disk is full at a metric row",
        "training continues; lost rows are counted and shown; writing recovers by itself",
    ),
    "fault-11": ("a last line that is only half written", "held back, then read once: nothing is lost or doubled"),
    "fault-12": (
        "a damaged byte in the middle of the metrics",
        "one line is skipped and counted; what follows is read",
    ),
    "fault-13": (
        "a value is NaN or infinite",
        "strict JSON on disk, a gap and a badge on the curve, an alert in words",
    ),
    "fault-14": ("a file is truncated or rotated while it is read", "noticed; no step is missing or doubled"),
    "fault-15": (
        "a resumed run or a later attempt writes steps again",
        "the last one to write a step counts; the curve never doubles back",
    ),
    "fault-16": (
        "the newest checkpoint is broken: a file of it cut short, emptied or deleted",
        "the newest one that verifies is used; those passed over are printed with the reason",
    ),
    "fault-17": ("one flipped byte in a checkpoint", "found by its SHA-256; the one before is used"),
    "fault-18": ("a malicious pickle in a checkpoint", "refused; it runs neither on resume nor when listed"),
    "fault-19": (
        "hostile values in any field, flag or name",
        "refused with a clear error, or carried literally; never code, shell or a path outside `scripts/` and `runs/`",
    ),
    "fault-20": ("torchrun's usual port is taken", "the rendezvous takes a free port"),
    "fault-21": ("one run is started fifty times at once", "one start succeeds, the others say why they did not"),
    "fault-22": (
        "a pid is used again, the clock is set, the machine rebooted",
        "no unrelated process is shown alive or signalled; durations stay right",
    ),
    "fault-23": (
        "a rank hangs, or is stopped in the middle of a collective",
        "it is named; every rank's Python stack is one click (or `nbtools show RUN --stacks`) away; the collective's timeout ends the run as `FAILED`",
    ),
    "fault-24": (
        "memory runs out: a limit, a MemoryError, the kernel's kill, the GPU's",
        "told apart in words, with the setting to change",
    ),
    "fault-25": ("a DataLoader worker dies or raises", "all ranks stop, the cause is shown, no worker is left"),
    "fault-26": (
        "resuming on another number of processes",
        "the same samples in the same order; the effective batch is kept, or the change is reported",
    ),
    "fault-27": (
        "resuming on the same number",
        "weights, optimizer and metrics equal those of the undisturbed run to the bit",
    ),
    "fault-28": (
        "a script prints 300 MB",
        "the notebook spends a small share of a core and no memory on it, and shows the end (`run.log()`: 200 lines); where rows come too fast, it reads samples and says so",
    ),
    "fault-29": (
        "colours, progress bars, bad UTF-8, a line of 10 MB",
        "shown as plain lines: stripped, collapsed, replaced, cut",
    ),
    "fault-30": ("100 runs, ten of them alive", "the table appears at once; runs that have ended are not read again"),
    "fault-31": (
        "a slow or odd file system: late renames, stale handles and listings",
        "what fails for a moment is tried again; the manifest, written last, decides what is a checkpoint",
    ),
    "fault-32": (
        "HTML, scripts or mathtext in names, metrics, log lines and errors",
        "shown literally, in the browser and in exported HTML",
    ),
    "fault-33": (
        "an unwritable `runs/` or `scripts/`, a read-only home, no `HOME`",
        "a clear error before anything starts; no home is needed",
    ),
    "fault-34": (
        "a loss becomes NaN while no one watches, and `stop_on` asks for it",
        "the supervisor stops the run with a checkpoint and records the condition, its step, and the last checkpoint before; the usual values give no false alarm",
    ),
    "fault-35": (
        "a command of `on_end` in a run directory: copied, resumed or forged",
        "never executed; words come from the owner's launch alone, no shell divides them, and their failure changes no result",
    ),
}
"""Each fault, and what can be relied on."""

SAFETY: dict[str, tuple[str, str]] = {
    "safety-nameless-machine": (
        "a machine whose own name has no address: a laptop without a network, a container",
        "processes on one machine find each other at 127.0.0.1; the dry run names the machine and what several need",
    ),
    "safety-removed-run": (
        "a run directory is removed while its processes live",
        "every verb says so and how to end them; `stop` ends them; a run behind it by `after` still waits",
    ),
    "safety-shared-memory": (
        "`/dev/shm` is too small for the batches of DataLoader workers",
        "a warning of the dry run; the training fails at once and names it instead of waiting for ever",
    ),
    "safety-stop-unkillable": (
        "a process that a stop cannot end, or that hides from its run",
        "named with pid and state, exit code 1; the supervisor continues and records the end; a holder of the run's lock counts as its process",
    ),
    "safety-renamed-machine": (
        "the name of a machine changes while a run trains on it",
        "the run is shown and stopped as before: its processes are known by the machine's boot, not by its name",
    ),
    "safety-pairs": (
        "fine-tuning on prompts and answers with a large sequence_length",
        "loss and cost are those of the answers: one end token each, batches padded to their longest; a run recorded before `pad_to` keeps its samples and losses",
    ),
    "safety-adapter": (
        "an adapter (LoRA) with another base model, a layer that the model lacks, or peft missing",
        "refused in words before the first step; the base stays as it is, checkpoints hold the adapter and heads alone, and an export gives the logits of base and adapter",
    ),
    "safety-predict": (
        "a file for `nbtools predict` has rows that cannot be read",
        "the others are predicted; every column is kept, each such row says why, and the report names the first; an existing result is not replaced",
    ),
    "safety-weights": (
        "a pretrained model whose names of weights a wrapper changed, or whose files lack weights",
        "a prefix that makes the names fit is taken off, and that is said; a model without weights of its pretrained part is refused",
    ),
    "safety-alone": (
        "`nbtools predict` samples for a row among others, or alone, or in smaller batches",
        "the random numbers depend on the row's text and the seed alone: the answer is the same; equal rows have equal answers, but for rows without a prompt",
    ),
    "safety-llada": (
        "a LLaDA whose own code does not run with today's transformers, or comes without its code",
        "no code from the hub runs; logits are those of its own code, and checkpoints keep its names of weights and settings",
    ),
    "safety-links": (
        "`runs/` is a link to another disk, the project is reached through a link, `scripts/` is read-only",
        "launch, resume, fork, plot, clean and doctor work; a fork that cannot write its script says what to do",
    ),
    "safety-text": (
        "a text is rewritten on its way to the model",
        "every character of a user's text reaches the tokenizer; what it cannot hold is counted and said; `clean='light'` is a choice",
    ),
    "safety-labels": (
        "a label holds a separator, an item of a list does, a row has no label, or a label reads like a missing value",
        "no cell is divided unless `label_separator` says so, lists keep their items, only an empty cell and the spellings of "
        "`missing_labels` are missing; one message counts all rows without a label, which `skip_unlabelled` leaves out",
    ),
    "safety-encoding": (
        "a dataset is in UTF-16 or UTF-32, has NUL bytes, or one line of it is a gigabyte",
        "read as its byte order mark says; refused by name without one; refused before the line is in memory",
    ),
    "safety-special": (
        "a user's text holds a special token of a pretrained tokenizer, such as `</s>` or `<mask>`",
        "it is characters, in texts, pairs and messages; a template's own are ids; `special_tokens='tokens'` reads them, and the log counts them",
    ),
    "safety-workers": (
        "loader workers that start afresh (forkserver, spawn) get a copy of the whole data each",
        "they open memory-mapped files by their path and give the same batches",
    ),
    "safety-template": (
        "a pretrained model is trained on sequences that its tokenizer would not make",
        "each sequence stands between the special tokens of the tokenizer's own template, which are never predicted",
    ),
    "safety-length": (
        "a sequence is longer than the positions that a RoBERTa can use",
        "refused before the first step with the length that it takes",
    ),
    "safety-dropout": (
        "`dropout` has no effect on a pretrained model",
        "it replaces every dropout of the encoder, unless `keep_model_dropout` keeps the model's own",
    ),
    "safety-code": (
        "a run directory, of this user or another, says `trust_remote_code=True`",
        "`predict`, `export` and the Playground run code of its model only if this call allows it; so does a resume of another user's run",
    ),
    "safety-policy": (
        "`dropout` acts on texts and verdicts that a model of `llm_gan` has written itself",
        "their loss is computed without dropout, as they were sampled: the gradient is that of the policy that wrote them",
    ),
    "safety-unused": (
        "a model has weights that the loss does not depend on, such as ESM's contact head",
        "it trains on several ranks; other models pay nothing for the search",
    ),
    "safety-before": (
        "a run from before a setting existed is resumed",
        "the setting means what the run did then: the resumed run ends with the same bits",
    ),
    "safety-old-data": (
        "folders that an older program prepared, with training text in their validation",
        "refused with the reason, and the command that prepares the text itself",
    ),
    "safety-supervisor": (
        "the supervisor fails: at once, before the training, or beside it",
        "the launch is refused with the cause, the run is FAILED with the cause, or the training continues; a LOST run quotes what the supervisor printed",
    ),
    "safety-echo": (
        "a rank raises and is slow to end, or ends in order too early; another one that only lost it fails first",
        "the exception is the first failure, with rank, traceback and path of its output, in any order of exits; the rank that ended in order is named, with the collective",
    ),
    "safety-interrupt": (
        "the kernel is interrupted while a launch starts",
        "the processes end before the run directory is removed",
    ),
    "safety-nested-launch": ("a launched program launches runs itself", "they continue when it ends or is stopped"),
    "safety-stop-restart": (
        "a stop arrives between two attempts of a run",
        "no further attempt; `STOPPED`, with the failure of the last one",
    ),
    "safety-lock": (
        "readers look at a lock at the moment at which it is made; a lock that does not work",
        "no reader is mistaken for a holder; `clean` asks for the recorded process, too",
    ),
    "safety-double-launch": (
        "two kernels press Launch at the same moment",
        "one run is started; both forms show it, and the second says that it was already started",
    ),
    "safety-older-script": (
        "a script that an older nbtools wrote",
        "it does not count as edited by hand; the fields that it lacks and their values are named before the launch and in the form",
    ),
    "safety-latest": (
        "run folders are copied or renamed, summer time ends, machines differ in their time zone",
        "`latest` is the run that was launched last, by the time in launch.json",
    ),
    "safety-launchers": (
        "srun, mpirun, mpiexec or flux start a script; a process inherits the environment of a rank",
        "the processes become the ranks of one training, or are refused with the command to use; a run has one rank 0",
    ),
    "safety-shared-disk": (
        "several nodes without a shared disk",
        "every rank ends with a DataError that names the node and says what to share",
    ),
    "safety-secrets": (
        "a token, key or password is given as an argument of a script",
        "the training, its restarts and resumes get it; of the run's files only secrets.json (mode 0600) has it, and nothing shows it",
    ),
    "safety-signals": (
        "a run's files name a process that is not the run's: of this user, of another one, or the first of the machine",
        "it gets no signal, and its memory is not read: a process shows by its environment, or by the lock that it holds, that it is the run's",
    ),
    "names": (
        "a run has a name: its script's, or one that was given with tags and a note",
        "every verb and `nt.Run` take it: `second` is the newest run of that name, `second~1` the one before; a miss names those that are near",
    ),
    "objects": (
        "a public object at the end of a cell, or an error of nbtools there",
        "a short text and a table of escaped text; `history` is a mapping for pandas and CSV; an error is one line",
    ),
    "source": (
        "a launch from a folder in a git repository",
        "the run keeps the commit and, for the user alone, the changes of tracked files; git starts no program for it",
    ),
    "compare-runs": (
        "`nt.compare` in a notebook",
        "the curves of up to 20 runs answer to pointer and keys; what differs and no equal field; a stored picture",
    ),
    "any-script": (
        "a program prints lines that no known form reads",
        "they are counted and not drawn; a click on a number, or `keep_curves`, makes a curve, which later runs of the program have, too",
    ),
    "runs-table": (
        "`nt.runs()` in a notebook",
        "a table that sorts, filters, labels, opens, stops, resumes and deletes; without a kernel the stored one shows",
    ),
    "playground": (
        "`nt.Playground` in a notebook",
        "the trained model answers in a process of its own; the answers stay readable without a kernel",
    ),
    "safety-swapped": (
        "a link or another folder takes the place of a run, a checkpoint or `.removed` while `clean` waits for an answer",
        "only the folders that were listed are deleted, known by device, inode and owner, relative to descriptors; other users' hidden folders stay",
    ),
    "safety-chmod": (
        "another user owns the folder of the GPU queue and puts links in the place of its new files",
        "permissions of no other file change, since they are set through descriptors; a launch warns that the folder is another user's",
    ),
    "safety-save-dir": (
        "a `save_dir` with a planted record, links for folders, or files that were edited since",
        "nbtools replaces and deletes only files with the recorded SHA-256, and follows no link; else the training is refused before its first step",
    ),
    "safety-bounded": (
        "a sparse file of a terabyte, a file of endless records, a config.json of a billion layers, an argument of megabytes",
        "each look takes seconds at most and says what is left; rows behind a hole are read",
    ),
    "safety-display": (
        "names of runs, checkpoints and metrics with control characters, or such as hide or reorder text",
        "every HTML table shows them as escapes, as the panel does",
    ),
    "safety-foreign-run": (
        "a run directory of another user",
        "show, stop, clean, resume and the panel write nothing into it",
    ),
    "safety-special-files": (
        "pipes, sockets and devices under the names of a run's or the queue's files, tickets of a newer nbtools",
        "they are not opened; no verb and no launch waits for them",
    ),
    "terminal": (
        "`nbtools` on a terminal of 80 columns, in a pipe, with `NO_COLOR` or `TERM=dumb`",
        "colours and lines that fit on a terminal, plain lines elsewhere; without a verb what runs, what ended why, what to type",
    ),
    "safety-terminal": (
        "names, logs and errors with terminal escapes, line feeds or characters that reorder text",
        "every verb prints them as visible escapes, a name on one line",
    ),
    "safety-many-launches": (
        "twenty launches at once, beside a loop of `nbtools clean`",
        "each is a run of its own; `clean` removes none that is being made or runs",
    ),
    "safety-two-panels": ("two kernels show one run, and one of them stops it", "both show `STOPPED`"),
    "safety-model-files": (
        "a model's or a checkpoint's file is a pickle, claims a huge header, or its manifest names `../`",
        "refused in words; nothing in it runs, and no file outside its folder is taken for a part of it",
    ),
    "safety-wheel": (
        "nbtools is installed from a wheel outside the clone, or beside another distribution of that name",
        "the wheel writes, launches and plots in an empty folder; `doctor` names the other distribution",
    ),
    "safety-many-runs": (
        "a project with thousands of runs",
        "`nbtools runs` opens the files of the runs that it lists; finding a run opens none; `clean` reads each launch.json once per pass",
    ),
    "safety-many-metrics": (
        "thousands of metric names, or a run that was resumed hundreds of times",
        "a value is found by its name, and a curve is joined once: the time is in proportion to the names and runs",
    ),
    "safety-panels": (
        "dozens of panels of ended runs in one kernel",
        "each keeps its picture and no figure or curves; a closed or replaced one keeps nothing",
    ),
    "safety-page": (
        "the kernel restarts, or a notebook that was saved during a run is opened without one",
        "the page shows the last picture and one sentence; no broken link and no `model not found`",
    ),
    "last-checkpoint": (
        "the last checkpoint, or an output, cannot be written: a full disk, a quota, an error of the disk, no permission",
        "it is tried again for ten minutes, at a stop within the time that it leaves; else the run is FAILED, is not restarted, and `show`, `wait`, `runs`, the panel and `export` say since which step nothing was saved",
    ),
    "moved-rate": (
        "a resume moves the learning rate by more than a fifth: more steps, another schedule, another number of samples",
        "a note before the launch, where it can be computed, and in the log names both rates, their steps and what changed",
    ),
    "safety-full-disk": (
        "the disk is full to its last byte, over quota, or read-only: at the start, a line, a row, a checkpoint, a restart, the end",
        "training continues; the end is recorded in space that the launch reserved; a launch or failure names the full disk; `stop` and `show` answer at once",
    ),
    "safety-non-finite": (
        "a gradient norm is NaN or infinite",
        "all ranks skip that step alone; the panel and `show` count it; after `max_skipped_steps` in a row the run fails with the cause; no checkpoint holds a non-finite weight",
    ),
    "safety-collective": (
        "a collective of NCCL times out",
        "torch's record of each rank's collectives is in ranks/; the failure names the collective, its shape, and the rank and node that did not come; a dump that holds more than plain values, or is another user's, is not read",
    ),
    "safety-gpu-count": (
        "a script for all GPUs is written on another machine than it is launched on",
        'it says `nproc_per_node="gpu"`, which the launch resolves on its machine',
    ),
    "safety-evaluation": (
        "a held-out part that would take longer to evaluate than the training",
        "`eval_samples` of it are measured, the same on any number of ranks; form, log and config.json say how many of how many; older configs evaluate all",
    ),
    "safety-test": (
        "reporting a model on the data that chose its checkpoint",
        "`test_fraction` of the held-out data is measured once, at the end of a completed training, with the best kept checkpoint, as `test/…`; it shares no text, row or goal with the other parts; form, log and config.json say what chooses and what tests; older configs have no test",
    ),
    "safety-split": (
        "a text that occurs several times is trained on and then tested",
        "equal texts (whatever their case, white space and line ends; of pairs the prompts) are in one part, in every text recipe and any order of rows; repeated texts are counted in log and form; texts of `val_data` that are trained on are counted and scored apart",
    ),
    "safety-data": (
        "a run is resumed on data that has changed",
        "refused, with the sizes of both, unless the data is named among the changes, which the log notes; a checkpoint of an older split is not resumed but can be forked",
    ),
    "safety-copies": (
        "a generator that copies the training texts",
        "`eval/copy_rate`, the share of generated 5-grams that the training texts hold, stands beside that of human texts",
    ),
    "safety-own-numbers": (
        "texts of a batch that change with the batch size, the passes or the number of ranks",
        "a generated text depends on the model, its prompt and its own random numbers; all texts of a step are written together, and the host waits for a GPU once in 16 tokens",
    ),
    "safety-unseen-code": (
        "an evaluation file with codes that no training row has",
        "each counts as an error of the model; a note names them",
    ),
    "safety-epochs": (
        "`--epochs` for a script or fork whose `max_steps` would end the training earlier",
        "without `--max-steps` the cap is lifted, with a note",
    ),
}
"""What could go wrong without a word, and what happens instead."""

SLURM: dict[str, tuple[str, str]] = {
    "slurm-requeue": (
        "a job is preempted, reaches its time limit, or is requeued",
        "a checkpoint is saved, the run is `QUEUED`, and the next attempt continues in its directory: every row once",
    ),
    "slurm-killed": (
        "the batch step of a job is killed",
        "after a requeue the next attempt ends what is left of it, and continues from the latest verified checkpoint",
    ),
    "slurm-progress": (
        "attempts of a job end again and again without a new checkpoint",
        "after three in a row the run is `FAILED`, with their causes and the settings to change; it is not queued again",
    ),
    "slurm-stop": (
        "scancel, or `nbtools stop`, of a pending or running job",
        "a pending one never starts; a running one saves a checkpoint and is `STOPPED`; no process is left",
    ),
    "slurm-rank": (
        "a rank on another node falls behind or is killed",
        "the straggler and the failure name its rank and its node",
    ),
    "slurm-nodes": ("two nodes with a rank each, instead of one node with two", "the losses differ by at most 1e-6"),
    "slurm-launchers": (
        "srun python, srun torchrun or accelerate launch starts a script in a job",
        "one run directory, and as many ranks as were started",
    ),
    "slurm-by-hand": (
        "`nbtools new … --sbatch`, then sbatch by hand",
        "lists and panel find the run; its preemption is named",
    ),
    "slurm-refusal": (
        "the site refuses partition, constraint, GPUs or memory",
        "the launch names the setting, its value and Slurm's words, and leaves no run directory",
    ),
    "slurm-drained": (
        "the nodes that a launch needs are drained or down",
        "the run is `QUEUED` with Slurm's reason, and starts once they take jobs; what no node offers is refused",
    ),
    "slurm-submission": (
        "a client is interrupted in the middle of a submission",
        "no job is left that its run directory does not know",
    ),
    "slurm-forged": (
        "a copied run directory, or a slurm.json that names the job of another run",
        "no job is signalled or cancelled",
    ),
    "slurm-login": ("a login node without torch and GPUs", "checks, submits, lists and stops runs"),
}
"""What a run on Slurm survives; shown on a real cluster, which CI has."""

GUIDES: dict[str, tuple[str, str]] = {
    "guide-L1": (
        "DDP, distributed sampler, mixed precision with a loss scale, one or several processes found by themselves",
        "",
    ),
    "guide-L2": (
        "PyTorch with CUDA, NCCL chosen by itself",
        "torch 2.9 is the floor; without a GPU the same code runs on gloo",
    ),
    "guide-L3": (
        "a shell script that launches: number of GPUs, data set",
        "nbtools new … --sh writes one that takes the same two words, then flags",
    ),
    "guide-L4": ("torchrun with addresses, ports and the old flags", ""),
    "guide-L5": ("the same script and flags under plain python", ""),
    "guide-L6": ("reads WORLD_SIZE and RANK", ""),
    "guide-L7": (
        "--data_dir --model_name --batch_size --epochs --learning_rate --save_dir --fp16 --no_fp16",
        "fp32 is the default here: 16 bits are asked for, and a machine that is slower with them says so",
    ),
    "guide-L8": (
        "gradients are averaged, shards do not overlap, 16 bits are smaller and faster",
        "faster is measured at the start of every run, never promised",
    ),
    "guide-L9": (
        "memory is batch x GPUs x model size; accumulate for large models",
        "the guide forgets gradients and optimizer: preflight says 16 bytes per weight and process",
    ),
    "guide-L10": (
        "trouble: NCCL, a taken port, memory",
        "turning --fp16 off against lack of memory, as the guide says, takes more of it: never told here",
    ),
    "guide-L11": ("NCCL_DEBUG=INFO reaches the ranks", ""),
    "guide-L12": ("several nodes by --nnodes, --node_rank, --master_addr", ""),
    "guide-L13": (
        "a banner: devices, model, batch per GPU and in all, epochs, rate, save directory, vocabulary, parameters",
        "",
    ),
    "guide-L14": ("resume from checkpoint_epoch_5.pt, with or without module.", ""),
    "guide-A1": (
        "accelerate config once, answers kept in a file of the user's home",
        "nothing to configure and no file in the home: processes and GPUs stand in the script's launch",
    ),
    "guide-A2": (
        "accelerate launch: --num_processes, --gpu_ids, --mixed_precision fp16",
        "its processes and devices arrive by torchrun's variables, its precision by a variable of its own; both hold, and so do --nproc-per-node and --gpus of nbtools launch",
    ),
    "guide-A3": ("torchrun; CUDA_VISIBLE_DEVICES=0,1 torchrun", ""),
    "guide-A4": ("plain python is one process on the first GPU", ""),
    "guide-A5": (
        "a flat YAML: mixed_precision, gradient_accumulation_steps, train_batch_size, test_batch_size, num_workers, tf_n_embd, tf_n_layer, n_transit, compress_interval",
        "nbtools new algorithm_distillation NAME --from-yaml FILE: what means something becomes a value of the script, what does not is named and kept as a comment; a flag of the same name works, too",
    ),
    "guide-A6": (
        "models, data and gradients are placed and shared out by themselves; bf16 needs Ampere",
        "parameters are replicated, not distributed as the guide says; preflight counts them per process",
    ),
    "guide-A7": (
        "mixed precision is about twice as fast with half the memory",
        "measured where it runs: on a CPU without such instructions it is many times slower, and that is said",
    ),
    "guide-A8": ("accumulation of 4 x 512 is an effective 2048 per GPU", ""),
    "guide-A9": (
        "checkpoints, logs, evaluation and progress from the main process; all ranks meet before a save",
        "evaluation is shared among the ranks and summed: none of them idles",
    ),
    "guide-A10": (
        "presets for 2, 4 and 8 GPUs",
        "--preset 2gpu, 4gpu, 8gpu; the speed-ups that the guide promises for them are not",
    ),
    "guide-A11": (
        "against lack of memory: smaller batch, accumulation, smaller model, shorter context",
        "the failure card names the settings, in an order that trains the same first",
    ),
    "guide-A12": ("a banner of 60 signs: processes, kind of distribution, precision, accumulation, device", ""),
    "guide-A13": (
        "tensorboard --logdir runs, each row once",
        "with `--report-to tensorboard`, or report_to in the script; the panel shows the same curves without it",
    ),
    "guide-A14": (
        "trouble: memory, more GPUs that are slower, runs that differ, hangs, a checkpoint with module.",
        "deterministic=True is one field; checkpoints never have the prefix, old ones may",
    ),
    "guide-A15": (
        "several nodes by accelerate config, or sbatch",
        "`nt.Launch(nnodes=N)` prints each node's command, and `cluster=nt.Slurm(...)` submits a job; or torchrun's own options on each node",
    ),
    "guide-A16": (
        "a table of hours by number and kind of GPUs",
        "refused: it contradicts the guide's own figures and mixes kinds of GPUs; tests/benchmarks measures what runs here against a peer in the same process, and prints the ratio",
    ),
    "guide-A17": (
        "practices: mixed precision, nvidia-smi, begin with 2 GPUs, checkpoints, torch.profiler by time",
        "GPU use is recorded beside the curves, profile_steps writes the trace and the table",
    ),
    "guide-A18": (
        "shell and Slurm scripts; a config changed in train.py and by launch flags",
        "`nbtools new … --sh` and `--sbatch` write them; the script is the config: every value is a line in it, every flag overrides one",
    ),
    "guide-A19": (
        "verify: all GPUs busy, the number of processes, replicas",
        "the panel shows every rank's heartbeat and every GPU's use; doctor --all-reduce tries a collective",
    ),
    "guide-A20": (
        "easy, automatic, near-linear, existing code runs unchanged",
        "speed-up is not promised but seen as tokens per second on the curve; files are UTF-8 throughout",
    ),
    "guide-O1": ("CUDA, several GPUs, NCCL", ""),
    "guide-O2": ("finetune.py --dataset CSV --target-cols a b --save-path ./output --batch-size 128", ""),
    "guide-O3": ("train_mixer.py --train-data a.csv b.csv --val-data v.csv --save-dir ./output --formatter hisco", ""),
    "guide-O4": ("--distributed switches DDP on", "accepted and needless: several processes are found by themselves"),
    "guide-O5": (
        "python -m torch.distributed.launch for old torch, torchrun for new",
        "both start the same script; --local-rank and --local_rank are accepted",
    ),
    "guide-O6": ("effective batch = batch x GPUs", ""),
    "guide-O7": ("rank 0 saves the unwrapped model", ""),
    "guide-O8": (
        "logs and Weights & Biases from rank 0",
        "rank0.log and metrics.jsonl; by report_to also TensorBoard, Weights & Biases or both. What fails in the service is a warning",
    ),
    "guide-O9": ("a distributed sampler", ""),
    "guide-O10": ("two nodes with addresses and port 29500", ""),
    "guide-O11": (
        "trouble: NCCL, single against several GPUs, memory",
        "one process with the joined batch and two with half of it take the same steps",
    ),
    "guide-M1": (
        "multi_gpu_configs.py list, and generate NAME, which writes an executable script",
        "nbtools presets, and nbtools new … --preset NAME --sh; every value of the preset reaches the training",
    ),
    "guide-M2": (
        "torchrun … --dataset hf --batch-size 32 --epochs 5 --lr 3e-5 --streaming true --max-samples 500k",
        "",
    ),
    "guide-M3": (
        "run_multi_gpu_training.sh hf 32 5 3e-5 true",
        "the script of nbtools new … --sh takes the same words, then flags",
    ),
    "guide-M4": ("six presets by number and kind of GPUs", ""),
    "guide-M5": ("the options and their defaults; --local_rank is automatic", ""),
    "guide-M6": (
        "dependencies by hand: torch cu118, transformers, datasets, tqdm, matplotlib",
        "one command sets everything up, with versions that were tested together",
    ),
    "guide-M7": (
        "8 GB per GPU, 32 GB of memory, 50 GB of disk",
        "preflight says what this very training takes (the guide's H200 has 141 GB, not 80)",
    ),
    "guide-M8": (
        "logs/CONFIG_training_DATE.log",
        "runs/DATE_NAME/rank0.log, with everything else of the run beside it",
    ),
    "guide-M9": (
        "nvidia-smi, and a summary of the GPUs at the end",
        "system.jsonl has use, memory and power of every GPU all along, and the panel shows them",
    ),
    "guide-M10": (
        "bars, losses of training and validation, time left, GPU use",
        "curves instead of bars, in the notebook and in nbtools watch",
    ),
    "guide-M11": (
        "trouble: memory, NCCL, the port, permission to execute",
        "--sh writes it executable; the port is always a free one",
    ),
    "guide-M12": ("tuning: 32-64 per GPU, mixed precision, streaming, shorter sequences, accumulation", ""),
    "guide-M13": ("mlm_model.pth, tokenizer.json, mlm_training_history.json, training_history.png", ""),
    "guide-M14": (
        "6-8 times faster, linear scaling",
        "refused as a promise: no figure without its benchmark (tests/benchmarks/bench_hf_trainer.py compares with transformers' Trainer in one process)",
    ),
    "guide-M15": (
        "a custom TrainingConfig(name, description, num_gpus, batch_size_per_gpu, …)",
        "the form, --set, or a line in the script: all of its fields are there, validated",
    ),
    "guide-M16": ("two nodes of 8 GPUs", ""),
    "guide-M17": (
        "support: look into logs, nvidia-smi, one GPU with --dataset imdb, device_count()",
        "nbtools doctor prints what an issue report needs",
    ),
    "guide-G1": ("a test of process group, all-reduce and DDP on two processes", "nbtools doctor --all-reduce"),
    "guide-G2": (
        "run_ddp_training.sh test, small, full",
        "nbtools new llm_gan NAME --preset test, small or full, or these words to the script of --sh; test needs no download and no GPU",
    ),
    "guide-G3": (
        "--batch_size 16 --epochs 5; --save_checkpoints --checkpoint_freq 10",
        "its data flags, too: --data_path, --min_story_length, --max_story_length",
    ),
    "guide-G4": ("no device_map: each process has its GPU, each model its DDP", ""),
    "guide-G5": ("a distributed sampler that gets the epoch", ""),
    "guide-G6": (
        "generation from a wrapped model",
        "the model inside writes, keeping keys and values: no forward pass that other ranks would wait for",
    ),
    "guide-G7": (
        "rank 0 logs, writes and evaluates, also to Weights & Biases; the underlying weights are saved",
        "--report-to wandb; a resumed run continues its id, a fork has its own",
    ),
    "guide-G8": (
        "checkpoints every so many steps and every epoch, both models",
        "with both optimizers, so that the training resumes from there; each model is a folder of its own",
    ),
    "guide-G9": ("8 GPUs are 8 times faster", "refused as a promise: measure it, the curve shows tokens per second"),
    "guide-G10": ("nvidia-smi shows all GPUs busy", "the panel shows it beside the curves"),
    "guide-G11": ("trouble: NCCL, memory, a hang", ""),
    "guide-G12": (
        "debugging: one process; torchrun --log_level=INFO",
        "torchrun has no --log_level; LOGLEVEL=INFO works and reaches it",
    ),
    "guide-G13": (
        "train_ddp.py, run_ddp_training.sh, clean_train.py, inference.py",
        "one script for any number of processes, and --sh for a shell script; transformers loads the generator from checkpoints/STEP/model/generator",
    ),
}
"""What the guide of an older program promised, and what nbtools does instead, where it differs.

L is LLaDA fine-tuning, A Algorithm Distillation, O OccCANINE, M masked language model pretraining, G the LLM GAN.
"""

REFUSED = {"guide-A16", "guide-M14", "guide-G9"}
"""Promises that nbtools does not keep, with the reason in their rows: they have no test."""

_NEVER = re.compile(r"pytest\.(mark\.)?(skip|xfail)\b")
_ELSEWHERE = re.compile(r"(pytestmark = )?\[?pytest\.mark\.(needs|gpu)\b")


def running_tests(path: Path, *, everywhere: bool = False) -> dict[str, ast.FunctionDef]:
    """Return the test functions of a file that are not always skipped or expected to fail, by name.

    With `everywhere`, only those that run on every machine: without a GPU and without what a test may need.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    marks = [ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark =")]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert len({node.name for node in functions}) == len(functions), f"{path.name}: two tests have the same name"
    found = {}
    for node in functions:
        calls = [ast.unparse(part) for part in node.body if isinstance(part, ast.Expr)]
        said = [*marks, *map(ast.unparse, node.decorator_list), *calls]
        is_conditional = any(map(_ELSEWHERE.match, said)) or any(map(_only_elsewhere, node.decorator_list))
        if not any(map(_NEVER.search, said)) and not (everywhere and is_conditional):
            found[node.name] = node
    return found


def _only_elsewhere(decorator: ast.expr) -> bool:
    """Whether every value of a `parametrize` needs something of the machine."""
    values = decorator.args[1] if isinstance(decorator, ast.Call) and len(decorator.args) > 1 else None
    return isinstance(values, ast.List) and all("pytest.mark.needs(" in ast.unparse(value) for value in values.elts)


def shown_by(*, everywhere: bool = False) -> dict[str, list[str]]:
    """Return the tests, as `folder/file.py::test`, that carry each promise's marker and run."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.promise(" not in path.read_text(encoding="utf-8"):
            continue
        for name, node in running_tests(path, everywhere=everywhere).items():
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
                    for key in map(ast.literal_eval, decorator.args):
                        found.setdefault(key, []).append(f"{path.relative_to(TESTS.parent).as_posix()}::{name}")
    return found


def tables() -> dict[str, str]:
    """Return the Markdown table of each kind of promise, by the name that marks its place in the page."""
    tests = shown_by()

    def table(head: str, promises: dict[str, tuple[str, str]]) -> str:
        lines = [f"| # | {head} | shown by |", "|---|---|---|---|"]
        for key, (promise, outcome) in promises.items():
            shown = "<br>".join(f"`{name}`" for name in tests.get(key, ()))
            lines.append(f"| {key.partition('-')[2]} | {promise} | {outcome} | {shown} |")
        return "\n".join(lines)

    return {
        "faults": table("fault | what you can rely on", FAULTS),
        "safety": table("danger | what you can rely on", SAFETY),
        "slurm": table("on Slurm | what you can rely on", SLURM),
        "guides": table("promise of the guide | what differs here", GUIDES),
    }


def page() -> str:
    """Return the text of `tests/README.md` with its tables made again."""
    text = README.read_text(encoding="utf-8")
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(page(), encoding="utf-8")
