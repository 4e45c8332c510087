r"""Tables of how programs, and what is put around their lines, begin a line.

`WRAPPERS` are what containers, pods, journald, Ray and launchers put in front of a line, `SPEAKERS`
what names the process, and `NATIVE` how each kind of program begins its lines (vLLM, glog and klog,
torch, NCCL, UCX, CANN, Rust, Go). A row more is a program more. `line_grammar` reads a line by them.

>>> NATIVE[0][1].match("ERROR 11-22 05:49:28 [a.py:7] no")["source"]
'a.py:7'
"""

from __future__ import annotations

import re

_LEVELS = r"TRACE|DEBUG|INFO|NOTICE|EVENT|WARN(?:ING)?|ERROR|CRITICAL|FATAL"
_LEVEL = rf"(?P<level>{_LEVELS})"
_DAY = r"\d{4}[-/]?\d\d[-/]?\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,:]\d[\d.]*)?"
_PLACE = r"(?P<named>(?:[A-Z]+(?:_[A-Z]+)*\d+ ?)+)"  # of a process in its groups: DP1 ATTN_CP3 TP7

# By which names whoever starts the parts of a deployment tells their lines apart.
_PARTS = (
    r"(?:(?:prefill|decode|encode)(?:r|-?\w+)?|(?:head|leader|worker|server|client|proxy|router|engine|"
    r"frontend|master|actor|rollout|trainer)(?:[-_]\w+)?)"
)
# How the lines of engines begin, before which another program may put what it likes.
_SPOKEN = (
    r"(?=\((?:EngineCore|Worker|VllmWorker|API|Api|RayWorker)[^()]*pid=\d|\[rank\d+\]|"
    rf"\[{_DAY} {_CLOCK} [A-Z_]+\d)"
)
# And how those of what an engine, or a program around it, starts with.
_STARTED = (
    rf"{_SPOKEN}|(?:ERROR|CRITICAL|WARNING|INFO) (?:\d{{4}}-)?\d\d-\d\d {_CLOCK}|Traceback \(most|thread '[^']*' panicked|"
    r"terminate called after|\[Router \(|\([\w.]+ pid=\d|(?:slurmstepd|srun)(?:-[\w.-]+)?: "
)
# Where the line of an engine begins behind whatever another program puts before it.
BEHIND = re.compile(
    r"\((?:EngineCore|Worker|VllmWorker|API|Api|RayWorker)[^()]{0,80}pid=\d|\[rank\d+\]|"
    r"\([A-Za-z_][\w.:-]{0,80} pid=\d|"
    rf"\[{_DAY} {_CLOCK} [A-Z_]+\d|(?:ERROR|CRITICAL|WARNING|INFO) (?:\d{{4}}-)?\d\d-\d\d {_CLOCK} \[?[\w./-]+:\d+\]"
)
# The sign after which the line of an engine begins, without a break behind what another program wrote,
# such as a bar.
GLUED = re.compile(
    r"[^ \t\n\v\f(](?=\((?:EngineCore|Worker|Vllm|API|Api|RayWorker)\w*[^()]* pid=\d+[^()]*\) |"
    rf"(?:ERROR|CRITICAL|WARNING|INFO) (?:\d{{4}}-)?\d\d-\d\d {_CLOCK} \[|\[rank\d+\]:|\[{_DAY} {_CLOCK}(?: [A-Z_]+\d[^]]*)?\] [A-Z])|"
    # behind a bar of progress, whatever ends a process
    r"(?:it/s|s/it|toks/s)\](?=Fatal Python error: |Process [A-Z]\w+:$|\[[\w.-]+:\d+ *:\d+:\d+\] |[\w.-]+:\d+:\d+ \[\d|terminate called|"
    r"Traceback \(|\*\*\* |\[[EF]\d{3,4} )"
)
# What is put around a line, with what it tells of its origin.
WRAPPERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:(?:#033|ESC|\^\[)?\[(?:[0-9;]+m(?!\])|m(?![\]a-z])) ?)+",  # a colour as syslog writes it, or without its escape
        r"\d{10,13},\"?(?=#033|\(|[A-Z])",  # a table of CloudWatch
        r"\d{1,2}(?:;\d{1,2})*m ?(?=[(\[A-Z])",  # and what is left of one
        r"std(?:err|out): ?",
        rf"[.#=*]{{1,200}}{_SPOKEN}",  # what shows progress, without a break
        rf" +{_SPOKEN}|(?:> ?)+(?={_SPOKEN}|(?:INFO|WARNING|ERROR) \d\d-|[EWIF]\d{{4}} )",  # a quotation
        r"REHEARSAL:? +",
        r"\*\*(?=[A-Za-z_][\w.]*(?:Error|Exception): )",  # what a person has set in bold
        # what pip shows of a compiler
        r" {2,12}(?=Killed *$|\S+\.(?:cuh?|cpp|cc|cxx|c|h|hpp):\d+(?::\d+)?: (?:fatal )?error: )",
        r"\[pod/(?P<node>[\w.-]+)/[\w.-]+\] ",  # kubectl logs --prefix
        r"(?P<node>[a-z0-9][a-z0-9-]*-[a-z0-9]{5}|[a-z][a-z0-9-]*-\d+) (?:\u203a )?[a-z][a-z0-9-]{2,} "
        r"(?=[\[(A-Z\d]| +File \"| {3,}\S)",  # stern: pod and container
        r"rank_(?P<task>\d{1,4}) \| ",  # launch_online_dp.py --echo, in a pod
        r"(?P<node>(?=[\w.-]*[A-Za-z]{2})[\w.-]+) +\| ?",  # docker compose
        rf"{_CLOCK} (?P<node>[A-Za-z][\w-]*\.\d+) +\| ?",  # honcho, foreman
        r"\{[^{}]{0,200}\"pod(?:_name)?\": ?\"(?P<node>[\w.-]+)\"[^{}]{0,200}\} (?=\S| )",  # loki
        r" *\| (?=[\[(]|(?:INFO|WARNING|ERROR) \d\d-)",  # a console that leaves out whose line it is
        rf"{_DAY}T{_CLOCK}(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] ",  # CRI
        # CI, and containers with --timestamps
        rf"{_DAY}T\d\d:\d\d:\d\d\.\d{{7}}(?:\d\d)?Z ",
        rf"{_DAY}T{_CLOCK}(?:Z|[+-]\d\d:?\d\d) (?=\(|\[|[EWI]\d{{4}} | *File |(?:INFO|ERROR|WARNING) \d\d-|[\w.-]+:\d+:\d+ \[\d|"
        r"Traceback|terminate called|Fatal Python|[A-Za-z_][\w.]*(?:Error|Exception)\b)",
        rf"{_DAY}T{_CLOCK}(?:Z|[+-]\d\d:?\d\d)\t|\[{_DAY}T{_CLOCK}Z\] ",  # collectors, CI
        rf"{_DAY} {_CLOCK} \| (?:{_LEVELS}) \| std(?:err|out) \| ",  # FastChat
        # a program that logs what an engine says, as "TIME - name - INFO - " or "TIME [Info] (name) "
        rf"{_DAY} {_CLOCK} (?:(?:\[(?:(?i:{_LEVELS})|(?P<node>[A-Za-z]\w*))\]|\(\w+\)|[\w.]+ -|[|-]) )+{_SPOKEN}",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<node>[\w.-]+) [\w./@-]+(?:\[\d+\])?: ",  # syslog
        # the journal without its host
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?!systemd|kernel)(?P<node>[\w.@-]+)\[\d+\]: ",
        rf"{_DAY}T{_CLOCK}(?:Z|[+-]\d\d:?\d\d) (?P<node>[\w.-]+) [\w./@-]+\[\d+\]: ",  # rsyslog
        r"[A-Z][a-z]{2} \d\d?, \d{4} @ \d\d:\d\d:\d\d\.\d+ +",  # Kibana
        rf"{_DAY} {_CLOCK} [A-Z]{{3,4}} \| ",  # a table of a console
        rf"[ \u00a0]{{0,4}}\| {_DAY}T{_CLOCK}Z? \| ",  # and one that was copied from a browser
        r"\[(?P<stage>Stage-\d+)\] ",
        rf"\[[A-Z]+\d+\] (?={_DAY} {_CLOCK} )",  # a tag behind the process: a loader's group
        # the border of a terminal's pane; a box that rich draws around a traceback stays
        r"\u2502 +(?=File \"|\[\d{4}-|[A-Za-z_][\w.]*(?:Error|Exception): )",
        r"\[\d+\] (?=\[rank\d)",  # a pid
        # a host, or a part of a deployment, as pdsh or sed writes it
        rf"(?!rank)(?P<node>[a-z][\w.-]*\d[\w.-]*|{_PARTS}|\d{{1,3}}(?:\.\d{{1,3}}){{3}}): ?"
        rf"(?={_SPOKEN}| *File \"| {{3,}}\S|Traceback|[A-Za-z_][\w.]*(?:Error|Exception): |terminate called|"
        r"[\w.-]+:\d+:\d+ \[\d)",
        # and as people do who copy what several of them say
        r"(?:[-*] )?(?P<node>(?:[PD]|(?i:prefill|decode|node|worker|rank)[-_ ]?)\d{1,3}) logs?: (?=\S)",
        # grep and tail, which name the file
        r"(?P<node>[\w.-]{1,80})\.(?:log|out|err):(?:\d+[:-])? ?(?=\S)",
        # a host, or a service, as programs that start others write it
        rf"\[(?!(?i:{_LEVELS})\])(?P<node>[A-Za-z][\w.-]*)(?::[a-z][\w-]*)?\]:? "
        r"(?=\(\w|\[\d{4}-|\[rank\d| +\S|Traceback|[A-Za-z_][\w.]*(?:Error|Exception)\b)",
        rf"\[(?!(?i:{_LEVELS})\])(?P<node>[A-Za-z][\w.-]*)\](?=\[{_DAY} {_CLOCK}\]\[)",
        # whatever a program puts in brackets before the lines of the one that it started
        rf"\[(?!rank\d|(?:[TDIWEF]|(?i:{_LEVELS}))\])[^][]{{1,40}}\]:? ?(?={_STARTED})",
        rf"\[(?!rank\d|(?:[TDIWEF]|(?i:{_LEVELS}))\])[A-Za-z][\w .-]{{0,40}}\]:? "
        r"(?= +File \"| {3,}\S|[A-Za-z_][\w.]*(?:Error|Exception): )",
        # srun --label
        r"(?P<task> {0,3}\d{1,4}): (?=[(\[A-Z/]| +File \"| {3,}\S|slurmstepd: |pyxis: )",
        r"pyxis: +(?=[\w-]+: )",  # containers of SLURM, which pass on what others say
        r"(?:#\d+ )?\d+\.\d\d\d? (?=Traceback| |ninja: |nvlink |[\w.]*(?:Error|Exception)\b)",  # docker build
        # mpirun --tag-output --timestamp-output
        r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
        r"\[(?:[\w.-]+@)?\d+,(?P<task>\d+)\]<std(?:err|out)>: ?",
        r"\[(?P<task>\d+)\]<std(?:err|out)>: ?",  # horovod
        r"\[(?:default|worker|trainer)(?P<task>\d+)\]: ?",  # torchrun --tee
        # mpiexec -prepend-rank
        r"\[(?P<task>\d{1,4})\] (?! +\d+ [a-z])(?=Traceback| +File \"| {3,}\S|[A-Za-z_][\w.]*(?:Error|Exception): |"
        r"\[TensorRT-LLM\]|\[TRT-LLM\]|terminate called)",
    )
)
# Who speaks; the innermost counts. `parts` are the places of a parallel group.
SPEAKERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\((?P<who>(?:EngineCore|Worker|Vllm|APIServer|ApiServer)\w*?)(?P<parts>(?:_[A-Z]*\d+)+)? "
        r"?(?:(?P<named>(?:[A-Z]+\d+ ?)+|rank=\d+) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\((?P<who>EngineCore|Worker)(?P<parts>(?:_[A-Z]*\d+)+)\) ",
        # where a form has taken its brackets away
        r"(?P<who>EngineCore|Worker)(?P<parts>(?:_[A-Z]*\d+)+)? pid=(?P<pid>\d+) (?=(?:INFO|WARNING|ERROR) )",
        r"\((?P<who>StageEngineCoreProc)_(?P<stage>stage\d+)\w* pid=(?P<pid>\d+)\) ?",  # vllm-omni
        r"\((?:pid=)?(?P<who>raylet|gcs_server)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\((?P<who>[^()\s=]+(?:\([^()]*(?:\([^()]*\))?[^()]*\))?) (?:rank=(?P<torch>\d+) )?"
        r"pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\(pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\[rank(?P<torch>\d+)\]: ?",
        rf"\[(?P<time>(?:{_DAY} )?{_CLOCK}) {_PLACE}\] ",  # SGLang
        rf"\[ {_PLACE}\] ",
        r"\[(?:(?![A-Z_]*[DTPEC]P\d)[\w:./-]{1,24} )?(?P<named>(?:[A-Z_]*[DTPEC]P\d+ ?)+)\] ",
        r"\[gpu_?(?:id)?=(?P<local>\d+)\] ",  # SGLang 0.2
        r"(?P<our>rank (?P<torch>\d+)): ",
        r"node (?P<node>[A-Za-z0-9][\w.-]*): ",  # our jobs
        r"(?P<door>load_balance_proxy\w*\.py|\w*proxy_server\w*\.py|vllm-router|mini_lb): ",
    )
)
# How programs begin their lines, once what is around them is gone.
NATIVE = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("vllm", rf"{_LEVEL} (?:\d{{4}}-)?\d\d-\d\d {_CLOCK} \[?(?P<source>[\w./-]+:\d+)\] ?"),
        ("uvicorn", rf"{_LEVEL}: {{2,}}"),
        (
            "cann",
            rf"\[{_LEVEL}\] ?(?P<who>[A-Z]+)\((?P<pid>\d+),[^)]*\):{_DAY}-{_CLOCK} "
            r"\[(?P<source>[\w.]+:\d+)\](?: ?\[\d+\])?",
        ),
        (
            "memfabric",
            rf"{_DAY} {_CLOCK} {_LEVEL} \[(?P<pid>\d+)-\d+\]\[(?P<who>[A-Z]\w+) (?P<source>[\w.]+:\d+)[^]]*\] ",
        ),
        (
            "torch_npu",
            rf"\[{_LEVEL}\] {_DAY}-{_CLOCK} \(PID:(?P<pid>\d+), Device:(?P<device>-?\d+), "
            r"RankID:(?P<npu>-?\d+)\) ?",
        ),
        ("torch_npu", rf"\[\d+\] \[{_DAY} {_CLOCK}\] [\w.]+: \[{_LEVEL}\] (?:\[\d+\] )?"),
        (
            "mindie",
            rf"\[{_DAY} {_CLOCK}(?:[+-]\d\d:?\d\d)?\] \[(?P<pid>\d+)\] (?:\[[\w.-]+\] ){{1,3}}"
            rf"\[{_LEVEL}\] (?:\[(?P<source>[\w.]+:\d+)\] ?)?(?:: ?)?",
        ),
        (
            "atb",
            rf"\[{_DAY} {_CLOCK}\] \[(?P<level>trace|debug|info|warn|error|critical)\] \[(?P<pid>\d+)\] "
            r"(?:\[(?P<source>[\w.]+:\d+)\] )?",
        ),
        (
            "nccl",
            rf"(?:\[{_DAY} {_CLOCK}\] )?(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<local>\d+)\] "
            r"(?:(?P<source>[\w./-]+:\d+) )?(?P<who>NCCL|NVSHMEM|RCCL) (?P<level>INFO|WARN|ERROR) ",
        ),
        (
            "nccl",
            rf"(?:\[(?P<torch>\d+)/\d+\])?\[{_DAY} {_CLOCK}\] \[(?P<source>[\w./-]+:\d+)\] "
            r"\[(?P<host>[\w.-]+):pid=(?P<pid>\d+)\] (?P<who>NCCL|RCCL) (?P<level>INFO|WARN) ",
        ),
        (
            "nccl",
            r"(?:\[(?P<local>\d+)\] )?(?:(?P<source>[\w./]+:\d+) )?(?P<who>NCCL) (?P<level>INFO|WARN) ",
        ),
        (
            "torch",
            r"\[(?P<level>[DIWEF])(?:\d{3,4} [\d:.]+)? (?P<source>[\w./]+:\d+)\] ?"
            r"(?:\[[^]]*?Rank (?P<torch>\d+)\] ?)?",
        ),
        (
            "glog",
            r"(?P<level>[DIWEF])(?:20\d\d)?\d{4} [\d:.]+ +(?:(?P<thread>\d+) )?(?P<source>[\w./-]+:\d+)\] ?",
        ),
        (
            "ucx",
            r"\[(?P<epoch>1\d{9})\.\d+\] \[(?P<host>[\w.-]+):(?P<pid>\d+) *:\w+\] +"
            r"(?P<source>[\w.]+:\d+) +(?P<who>UCX) +(?P<level>DEBUG|INFO|WARN|ERROR|FATAL|DIAG) +",
        ),
        (
            "ucx",
            r"\[(?P<host>[\w.-]+):(?P<pid>\d+) *:\d+:\d+\] +(?P<source>[\w.]+:\d+) +"
            r"(?:(?P<who>UCX) +)?(?:(?P<level>Fatal|FATAL|ERROR|WARN):? +)?",
        ),
        ("ucx", r"\[(?P<host>[\w.-]+):(?P<pid>\d+) *:\d+:\d+\] +(?=Caught signal)"),
        ("mpi", r"\[(?P<host>[\w.-]+):(?P<pid>\d+)\] (?=\*\*\* |Signal|Failing at )"),
        (
            "ray",
            rf"\[{_DAY} {_CLOCK} (?P<level>[DIWEC]) \d+ \d+\] "
            r"(?:\((?P<who>\w+)\) )?(?:(?P<source>[\w.]+:\d+): )?",
        ),
        (
            "tensorrt",
            rf"(?:\[\d\d/\d\d/{_DAY[:5]}-{_CLOCK}\] )?\[(?P<who>TRT-LLM)\]"
            r"(?: ?\[(?:RANK (?P<torch>\d+)|(?P<level>[TVDIWEF])|[\w.:/-]+)\])+ ",
        ),
        ("tensorrt", rf"\[(?P<who>TensorRT-LLM)\]\[{_LEVEL}\] "),
        (
            "turbomind",
            rf"\[(?P<who>TM)\]\[{_LEVEL}\](?:\[\d{{4}}\.[\d:.]+\])?(?:\[(?P<source>[\w.]+:\d+)\])? ",
        ),
        (
            "slurm",
            r"(?P<who>slurmstepd|srun|sbatch|salloc)(?:-(?P<host>[\w.-]+))?: (?P<level>error|fatal): "
            r"(?=(?:(?:\*\*\* (?:JOB|STEP) \S+ ON |(?P<lost>Node failure on ))?(?P<node>[\w.-]+)"
            r"(?(lost)|(?:: tasks? (?:(?P<task>\d+):)?| CANCELLED AT)))?)",
        ),
        (
            "ccl",
            r"\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:\( *(?P<pid>\d+)\) "
            r"\|(?P<who>CCL)_(?P<level>DEBUG|INFO|WARN|ERROR)\| (?:(?P<source>[\w.]+:\d+) )?",
        ),
        ("xccl", r"\[(?P<who>XCCL)\]\[(?P<source>[\w.]+:\d+)\] (?=(?:dev (?P<local>\d+) )?)"),
        ("kernel", r"(?:(?P<who>kernel): ?)?\[ *\d+\.\d+\] "),
        (
            "rust",
            rf"{_DAY}[T ]{_CLOCK}Z? +{_LEVEL} (?:(?P<door>(?:sglang|vllm)_router\w*)|[a-z]\w*)(?:::\w+)+: "
            r"(?:(?P<source>[\w/.-]+\.rs:\d+): )?",
        ),
        ("rust", rf"\[(?P<door>Router) \(Rust\)\] {_DAY} {_CLOCK} - {_LEVEL} - "),
        ("logfmt", r"time=\S+ level=(?P<level>[a-z]+) (?:source=(?P<source>\S+) )?msg="),
        (
            "python",
            rf"\[?{_DAY}[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]?(?: [|-])? +"
            r"(?:(?:rank_?(?P<torch>\d+)|[\w.-]+) (?:\d+|[|-]) )?"
            rf"\[?{_LEVEL}\b\]? *(?:[|:-]+ )?(?:(?P<source>[\w./]+:\d+)[ \]:-]+)?",
        ),
        ("python", r"\d{8}-[\d:.]+ [\w.]+ (?P<level>INFO|WARNING|ERROR): "),
        ("python", rf"{_LEVEL}:[\w.]+:"),
        (
            "nginx",
            rf"{_DAY} {_CLOCK} \[(?P<level>error|crit|alert|emerg|warn|notice|info)\] \d+#\d+: (?:\*\d+ )?",
        ),
        ("bracketed", rf"\[{_DAY} {_CLOCK}\]\[[A-Z]\w*\]\[(?P<level>[TDIWEF])\] "),
        ("bracketed", rf"\[{_DAY} {_CLOCK}\]\[(?P<source>[\w./-]+:\d+)\]\[{_LEVEL}\]:? "),
        (
            "hami",
            rf"\[HAMI-core {_LEVEL} \(pid:(?P<pid>\d+) thread=\d+ (?P<source>[\w.]+:\d+)\)\]: ",
        ),
        ("bare", rf"\[(?:{_LEVEL}|(?P<low>err|ERR|error|fatal|warn|warning|info|debug))\]:? +"),
        ("bare", rf"(?:\d\d-\d\d \d\d:\d\d:\d\d )?{_LEVEL} (?=[A-Z])"),
        ("timed", rf"\d\d-\d\d \d\d:\d\d:\d\d (?=[A-Z])|{_DAY} {_CLOCK} - (?=[A-Z])"),
        ("sglang", rf"\[(?:{_DAY}|\d\d-\d\d) {_CLOCK}\] "),
    )
)
