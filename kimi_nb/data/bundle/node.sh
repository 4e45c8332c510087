#!/bin/bash
# What can be done on this node; node.env beside it says which one it is.
#
#   ./node.sh VERB...     look claim prepare engine weights push start open state tails stop release
#
# Each verb creates what is missing and reuses what is there, so that a second run changes nothing.
# With DRY=1, and behind the word dry, they say what they would change. With DOWNLOAD=1 weights
# fetches what is missing, and with LEAVE_HOST=1 prepare changes nothing. One line on stdout for each thing that was looked at:
#   kind <tab> thing <tab> text      kinds: same, change (with DRY), changed, warn, fail, fact
# The verbs are called by name; node.env gives the rest.
# shellcheck disable=SC1091,SC2329,SC2016,SC2153
set -uo pipefail
if [ -z "${NODE:-}" ]; then . "$(dirname "$0")/node.env"; fi
RUN=${RUN:-by-hand-${USER:-$EUID}} HOLDER=${HOLDER:-${USER:-$EUID}@$HOSTNAME} DRY=${DRY:-} FILES=${FILES:-by-hand}
failed=0
# Debian and Ubuntu name the folder after the processor.
JEMALLOC=${JEMALLOC/aarch64-linux-gnu/$(uname -m)-linux-gnu}

say() {
    local text=${3//[$'\n\t']/ }
    printf '%s\t%s\t%s\n' "$1" "$2" "$text"
    if [ "$1" = fail ]; then failed=1; fi
}

# do_it THING TEXT COMMAND...: runs it unless DRY, and says what came of it.
do_it() {
    local thing=$1 text=$2 out
    shift 2
    if [ -n "$DRY" ]; then say change "$thing" "$text"; return 0; fi
    if out=$("$@" 2>&1); then say changed "$thing" "$text"; return 0; fi
    say fail "$thing" "$text: ${out:-exit code $?}"
    return 1
}

as_root() {
    if [ "$EUID" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

look() {
    local at=$WORK free
    # The nearest folder that is there: WORK itself may be made later.
    until [ -d "$at" ]; do at=${at%/*} at=${at:-/}; done
    { read -r free && read -r free; } < <(df -B1 --output=avail "$at")  # below its heading
    say fact host "$HOSTNAME, $HOSTTYPE, ${USER:-$EUID}"
    say fact free "$free"
    if [ "$free" -lt "$NEEDED_BYTES" ]; then
        say fail disk "$at: No space left on device ($free bytes are free)"
    fi
}

# Who has the node: a link that only one can make.
claim() {
    local out new=$WORK/claim.new.$NODE.$$
    if is_ours; then say same claim "held by this run"; return; fi
    if [ -e "$WORK/claim" ]; then held; return; fi
    if [ -n "$DRY" ]; then say change claim "take the node"; return; fi
    if [ ! -d "$WORK" ] && ! out=$(mkdir -p "$WORK" 2>&1); then say fail claim "$out"; return; fi
    # Written elsewhere and linked: whoever sees the claim sees whose it is, however this ends.
    if ! out=$(printf '%s\n' "$RUN" "$HOLDER" 2>&1 > "$new"); then
        rm -f "$new"
        say fail claim "$out"
        return
    fi
    if out=$(ln "$new" "$WORK/claim" 2>&1); then
        say changed claim "taken"
    elif is_ours; then
        # Another node of this machine.
        say same claim "held by this run"
    elif [ -e "$WORK/claim" ]; then
        held
    else
        say fail claim "$out"
    fi
    rm -f "$new"
}

is_ours() {
    local who
    { read -r who < "$WORK/claim"; } 2> /dev/null && [ "$who" = "$RUN" ]
}

held() {
    local who
    who=$(paste -sd ' ' "$WORK/claim" 2> /dev/null)
    say fail claim "held by ${who:-nobody who says so: $WORK/claim is empty; remove it}"
}

release() {
    if [ ! -e "$WORK/claim" ]; then say same claim "free"; return; fi
    if ! is_ours; then
        # After a start that another run's claim has stopped there is nothing of ours here.
        say warn claim "left alone: held by $(paste -sd ' ' "$WORK/claim")"
        return
    fi
    do_it claim "given back" rm -f "$WORK/claim"
}

# Ours, and not that of another run: what changes the node asks for it.
mine() {
    if [ -n "$DRY" ] || is_ours; then return 0; fi
    if [ -e "$WORK/claim" ]; then
        say fail claim "not held by this run: $(paste -sd ' ' "$WORK/claim")"
    else
        say fail claim "nobody holds the node: the verb claim comes first"
    fi
    return 1
}

prepare() {
    local setting name want have file files=() out
    if [ -n "${LEAVE_HOST:-}" ]; then say same host "left as it is, as asked for"; SYSCTL=() GOVERNOR='' JEMALLOC=''; fi
    for setting in "${SYSCTL[@]}"; do
        name=${setting%%=*} want=${setting#*=}
        if ! { read -r have < "/proc/sys/${name//.//}"; } 2> /dev/null; then
            say warn "$name" "this kernel does not have it"
        elif [ "$have" = "$want" ]; then
            say same "$name" "$want"
        else
            do_it "$name" "$have -> $want, as root" as_root sysctl -qw "$name=$want"
        fi
    done
    if [ -n "$GOVERNOR" ] && [ -d /sys/devices/system/cpu/cpu0/cpufreq ]; then
        files=(/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor)
        have=$(sort -u "${files[@]}" | paste -sd ' ')
        if [ "$have" = "$GOVERNOR" ]; then
            say same governor "$GOVERNOR"
        else
            do_it governor "$have -> $GOVERNOR, as root" as_root bash -c 'echo "$1" | tee "${@:2}" > /dev/null' _ "$GOVERNOR" "${files[@]}"
        fi
    fi
    if [ -n "$JEMALLOC" ]; then
        if [ -e "$JEMALLOC" ]; then
            say same jemalloc "$JEMALLOC"
        elif command -v apt-get > /dev/null && [ -z "$DRY" ] && out=$(as_root apt-get install -y libjemalloc2 2>&1) \
                && [ -e "$JEMALLOC" ]; then
            say changed jemalloc "libjemalloc2 installed, as root"
        elif [ -n "$DRY" ]; then
            say change jemalloc "install libjemalloc2, as root"
        else
            say warn jemalloc "$JEMALLOC is missing, and could not be installed: the engine runs without it, a little slower"
        fi
    fi
    for file in "${HOST_FILES[@]}"; do
        if [ -e "$file" ]; then
            say same "$file" "is there"
        elif [ "$file" = /etc/hccn.conf ]; then
            say fail "$file" "is missing: it holds the addresses of the NPUs"
        else
            say warn "$file" "is missing: docker makes an empty folder in its place"
        fi
    done
}

#store{
# The KV store that the engines of several nodes share; without one, these parts are left out. Its
# master and services come before the engines, which end where no master answers.
share() {
    local part name address port waited
    for part in "${SHARED[@]}"; do
        read -r name address port <<< "$part"
        if [ -e "$FOLDER/$name.sh" ] && ! runs "$name"; then
            if ! launch "$name" bash "$name.sh"; then say fail store "$FOLDER/run cannot be written"; return 1; fi
            say changed store "started: $name.sh"
        fi
        for ((waited = 0; waited < ${STORE_SECONDS:-40} * 5; waited++)); do
            if timeout 2 bash -c ': < "/dev/tcp/$0/$1"' "$address" "$port" 2> /dev/null; then continue 2; fi
            if [ -e "$FOLDER/run/$name.code" ]; then
                say fail store "$name ended with exit code $(< "$FOLDER/run/$name.code"): $(tail -n 1 "$FOLDER/logs/$name.log")"
                return 1
            fi
            sleep 0.2
        done
        say fail store "$name does not answer at $address, port $port, after ${STORE_SECONDS:-40} seconds"
        return 1
    done
}

# Whether the store's parts on this node still run, beside engines that do.
shared() {
    local part name rest
    for part in "${SHARED[@]}"; do
        read -r name rest <<< "$part"
        if [ -e "$FOLDER/$name.sh" ] && ! runs "$name"; then
            say fail store "$name has ended, and the engines run without it: stop them all, then start"
            return 1
        fi
    done
}

# ends NAME...: these programs are told to end, and waited for.
ends() {
    local all waited
    for ((waited = 0; waited < ${STOP_SECONDS:-20} * 10; waited++)); do
        all=$(pids "$@")
        if [ -z "$all" ]; then return; fi
        if [ "$waited" = 0 ]; then xargs kill -TERM <<< "$all" 2> /dev/null; fi
        sleep 0.1
    done
}
#}store

engine() {
    local out found
    #store{
    if ! found=$(PATH=${ENGINE:+$ENGINE/bin:}$PATH command -v mooncake_master); then
        say fail store "mooncake_master is not ${ENGINE:+in $ENGINE/bin, nor }on PATH"
    elif ! out=$("$found" --version 2>&1); then
        say fail store "$found: $(tail -n 1 <<< "$out")"
    else
        say same store "$found"
    fi
    #}store
    if [ -n "$ROUTER" ]; then
        if found=$(PATH=${ROUTER_PATH:+$ROUTER_PATH:}$PATH command -v "$ROUTER"); then
            say same router "$found"
        else
            say fail router "$ROUTER is not ${ROUTER_PATH:+in $ROUTER_PATH, nor }on PATH"
        fi
    fi
    if [ -z "$IMAGE" ]; then
        if [ -n "$ENGINE" ]; then PATH=$ENGINE/bin:$PATH; fi
        if found=$(command -v vllm); then say same engine "$found"; version; else say fail engine "vllm is not ${ENGINE:+in $ENGINE/bin, nor }on PATH"; fi
        return
    fi
    if ! command -v docker > /dev/null; then say fail docker "docker is not installed"; return; fi
    if docker image inspect "$IMAGE" > /dev/null 2>&1; then say same image "$IMAGE"; version; return; fi
    if ! out=$(docker info 2>&1 > /dev/null); then say fail docker "docker does not answer: $(tail -n 1 <<< "$out")"; return; fi
    if [ -n "$DRY" ]; then say change image "pull $IMAGE"; return; fi
    if out=$(docker pull "$IMAGE" 2>&1); then
        say changed image "pulled $IMAGE"
        version
    else
        say fail image "$IMAGE: $(tail -n 1 <<< "$out")"
    fi
}

# The version of vLLM that is installed: a tag or a folder may hold another than the plan is for. A
# program that is no Python script, or an image without pip's records, does not tell.
version() {
    local run line='' told
    if [ -n "$IMAGE" ]; then
        run=(docker run --rm --entrypoint python3 "$IMAGE")
    else
        { read -r line < "$found"; } 2> /dev/null
        if [[ $line != '#!'*python* ]]; then return; fi
        read -ra run <<< "${line#??}"
    fi
    told=$("${run[@]}" -c 'from importlib import metadata; print(metadata.version("vllm"))' 2> /dev/null) || return 0
    if [[ $told =~ ^$VLLM([^0-9.]|\.[a-z]|$) ]]; then say same version "vLLM $told"; return; fi
    say fail version "vLLM $told is in ${IMAGE:-$found}, and the plan is for $VLLM"
}

# WEIGHTS: name, folders where the engine finds it (patterns), folders where a hub's program may
# have left it, options of check_weights.py, the folder that a download fills, its size in GB and its
# command, the script that edits its config.json; with | between, and tabs within.
weights() {
    local entry name places elsewhere options into gb fetch edit found is_whole ended=
    for entry in "${WEIGHTS[@]}"; do
        IFS='|' read -r name places elsewhere options into gb fetch edit <<< "$entry"
        into=${into/#\~/$HOME}
        IFS=$'\t' read -ra places <<< "$places"
        IFS=$'\t' read -ra elsewhere <<< "$elsewhere"
        IFS=$'\t' read -ra options <<< "$options"
        is_whole=
        if found=$(whole "${places[@]}"); then is_whole=1; say same weights "$name: $found"; else lacking; fi
        if [ -n "$edit" ] && [ -n "$is_whole" ]; then edited; fi
        if [ -n "$ended" ]; then return; fi
    done
}

# The edit of config.json that the engine needs: looked at, and made where it is not there.
edited() {
    local folder said code=0 script=${EDIT:-}
    folder=$(check_weights --where "${places[@]}" 2> /dev/null)
    if [ -z "$script" ]; then script=$(cat "$(dirname "$0")/$edit"); fi
    said=$(in_python "$script" look "$folder" 2>&1) || code=$?
    if [ "$code" = 0 ]; then
        say same config "$folder/config.json: $said"
    elif [ "$code" = 3 ]; then
        do_it config "$folder/config.json: $said" in_python "$script" apply "$folder"
    else
        say fail config "$name: $said"
    fi
}

# whole PLACE...: says what is there, or what is wrong with it.
whole() {
    check_weights ${CHECKSUMS:+--checksums} ${options[@]+"${options[@]}"} "$@" 2>&1
}

# A checkpoint that is missing, or not whole. What the hub's own program has left in its cache need
# not be fetched again: links to its files cost no space.
lacking() {
    local other='' linked='' room='' what
    if [ -z "$fetch" ]; then say fail weights "$name: $found"; return; fi
    if [ ${#elsewhere[@]} != 0 ] && other=$(check_weights --where "${elsewhere[@]}" 2> /dev/null) \
            && whole "$other" > /dev/null; then
        if [ "$(device "$other")" = "$(device "$into")" ]; then linked=1; fi
        what="take the files of $other into $into"
    else
        other='' what="download ${gb:+$gb GB }into $into: $fetch"
    fi
    if [ -n "$linked" ] || room=$(check_weights --room "${gb:-0}" "${places[@]}" 2>&1); then room=; fi
    if [ -z "${DOWNLOAD:-}" ]; then
        if [ -n "$room" ]; then what="$what; the disk is too full: $room"; fi
        say fail weights "$name: $found;${other:+ $other, which the engine does not read, has it:} $what"
    elif [ -n "$room" ]; then
        say fail room "$name: the disk is too full: $room"
    elif [ -z "$other" ] && [ -z "$IMAGE" ] && ! program > /dev/null; then
        say fail hub-program "$name: ${fetch%% *} is not on PATH, and there is no image that has it"
    elif [ -z "$other" ] && [ "${fetch%% *}" = hf ] && offline; then
        say fail offline "$name: $found; HF_HUB_OFFLINE is set, so that nothing is asked of the hub"
    elif [ -n "$DRY" ]; then
        say change weights "$name: $what"
    elif [ "$failed" = 0 ]; then
        fill_in
    fi
}

# The file system of a folder that may be made later.
device() {
    local at=$1
    until [ -d "$at" ]; do at=${at%/*} at=${at:-/}; done
    stat -c %d "$at"
}

# The hub's program on this node; the engine's environment has one.
program() {
    if [ -n "$ENGINE" ]; then PATH=$ENGINE/bin:$PATH; fi
    command -v "${fetch%% *}"
}

offline() {
    env ${HUB_VARIABLES[@]+"${HUB_VARIABLES[@]}"} bash -c \
        '[[ "${HF_HUB_OFFLINE:-${TRANSFORMERS_OFFLINE:-}}" =~ ^(1|ON|YES|TRUE|on|yes|true|On|Yes|True)$ ]]'
}

# Fetches a checkpoint, or goes on with it. On a file system that nodes share one of them does, and
# the others wait for it.
fill_in() {
    local lock=$into/.weights-${name//\//--}.lock log=$WORK/weights-${name//\//--}.log out beat code=0
    if ! out=$(mkdir -p "$into" "$WORK" 2>&1 && take "$lock" 2>&1); then say fail weights "$name: $out"; return; fi
    while kill -0 $$ && [ -e "$lock" ]; do touch -c "$lock"; sleep 5; done < /dev/null > /dev/null 2>&1 &
    beat=$!
    local fetched=
    if ! found=$(whole "${places[@]}"); then
        fetched=1
        # Marked, so that the verb stop finds it when whoever waited for it is gone.
        (
            export KIMI_NB_RUN=$RUN:$NODE/weights
            if [ -n "$other" ]; then take_files; else download; fi
        ) > "$log" 2>&1 < /dev/null || code=$?
        # Ended by a signal: then the next one is not begun.
        if [ "$code" -gt 128 ]; then ended=1; fi
    fi
    # Before a word is said: nobody may listen any more, and a word ends this script then.
    kill "$beat" 2> /dev/null
    rm -f "$lock"
    # Not the exit code: hf ends with 0 where the hub does not answer and the folder is there.
    if [ -z "$fetched" ]; then
        is_whole=1
        say same weights "$name: $found"
    elif found=$(whole "${places[@]}"); then
        is_whole=1
        say changed weights "$name: $found"
    else
        why
    fi
}

# take LOCK: waits until it is ours. Who holds it touches it; one that nobody touches is left over.
take() {
    local seen waited
    until ( set -C; : > "$1" ) 2> /dev/null; do
        if [ ! -w "${1%/*}" ]; then echo "${1%/*}: cannot be written"; return 1; fi
        seen=$(stat -c %Y "$1" 2> /dev/null)
        for ((waited = 0; waited < ${LOCK_SECONDS:-60}; waited++)); do
            sleep 1
            if [ "$(stat -c %Y "$1" 2> /dev/null)" != "$seen" ]; then continue 2; fi
        done
        rm -f "$1"
    done
}

take_files() {
    if [ -n "$linked" ] && cp -rlLf "$other/." "$into/"; then return 0; fi
    cp -rL "$other/." "$into/"
}

# In the image where the node has no such program. WORKERS is how many files at the same time.
download() {
    local words=() at tool variables options=() run
    eval "words=($fetch)"
    for at in "${!words[@]}"; do
        if [ "${words[at]}" = --max-workers ]; then words[at + 1]=${WORKERS:-${words[at + 1]}}; fi
    done
    variables=("HF_XET_HIGH_PERFORMANCE=${HF_XET_HIGH_PERFORMANCE:-1}"
        "MODELSCOPE_DOWNLOAD_PARALLELS=${MODELSCOPE_DOWNLOAD_PARALLELS:-4}"
        ${HUB_VARIABLES[@]+"${HUB_VARIABLES[@]}"})
    if tool=$(program); then
        env "${variables[@]}" "$tool" "${words[@]:1}"
        return
    fi
    for at in "${variables[@]}" HF_TOKEN HF_ENDPOINT HTTP_PROXY HTTPS_PROXY NO_PROXY MODELSCOPE_API_TOKEN \
            MODELSCOPE_ENDPOINT MODELSCOPE_DOMAIN http_proxy https_proxy no_proxy; do
        options+=(-e "$at")
    done
    run=(docker run --rm --net=host -v "$into:$into" "${options[@]}" --entrypoint "${words[0]}" "$IMAGE")
    "${run[@]}" "${words[@]:1}"
}

# Why a checkpoint is still not whole, by what the hub's program said.
why() {
    local line thing=weights
    if line=$(said 'No space left on device|Errno 28|Disk quota exceeded'); then
        thing=room line="the disk is full"
    elif line=$(said 'cannot be accessed|Name or service not known|resolve|Connection|Network is unreachable|timed out|Max retries'); then
        thing=hub line="the hub does not answer: $line"
    elif line=$(said '(^|[^0-9])40[13]([^0-9]|$)|[Gg]ated|[Uu]nauthorized'); then
        thing=hub-key line="the hub refuses: $line"
    else
        line="exit code $code: $(said .)"
    fi
    say fail "$thing" "$name: $line. It is not whole, $found. What was said: $log"
}

said() {
    tr '\r' '\n' < "$log" | grep -E "$1" | tail -n 1 | cut -c 1-300 | grep .
}

check_weights() {
    in_python "${CHECK_WEIGHTS:-$(cat "$(dirname "$0")/check_weights.py")}" "$@"
}

# in_python SCRIPT WORDS...: where the node has no python3, that of the image, which sees the
# folders of the checkpoint under the same names.
in_python() {
    local script=$1 at place run=(python3) mounts=()
    shift
    if ! command -v python3 > /dev/null && [ -n "$IMAGE" ]; then
        for place in "${places[@]}" ${elsewhere[@]+"${elsewhere[@]}"} "$into"; do
            at=${place%%/snapshots/*}
            until [ -d "$at" ] || [ -z "$at" ]; do at=${at%/*}; done
            if [ -n "$at" ] && [[ " ${mounts[*]-} " != *" $at:$at "* ]]; then mounts+=(-v "$at:$at"); fi
        done
        run=(docker run --rm -i ${mounts[@]+"${mounts[@]}"} --entrypoint python3 "$IMAGE")
    fi
    env ${HUB_VARIABLES[@]+"${HUB_VARIABLES[@]}"} "${run[@]}" - "$@" <<< "$script"
}

# The processes of this node's run: by what they inherited, by their session, and what is below
# them. (vLLM's engine cores write a title over their variables.) A container's are not among them.
pids() {
    local name leader boot began stat marked='' sessions=''
    #store{
    if [ $# = 0 ]; then set -- engines router weights store-service store-master; fi
    #}store
    if [ $# = 0 ]; then set -- engines router weights; fi
    for name in "$@"; do
        marked+=" $(grep -lzsxF "KIMI_NB_RUN=$RUN:$NODE/$name" /proc/[0-9]*/environ | tr -dc '0-9\n' | paste -sd ' ')"
        stat=
        { read -r leader boot began < "$FOLDER/run/$name.pid"; } 2> /dev/null || continue
        if [ "$boot" != "$(< /proc/sys/kernel/random/boot_id)" ]; then continue; fi
        { read -r stat < "/proc/$leader/stat"; } 2> /dev/null
        # Gone, waiting to be reaped, or ours: no other process has its number while its session lasts.
        if [ -z "$stat" ] || [[ ${stat##*) } == Z* ]] || [[ " $marked " == *" $leader "* ]]; then
            sessions+=" $leader $began"
        fi
    done
    # Fields: 1 process, 2 state, 3 parent, 5 session, 21 its start in clock ticks.
    cat /proc/[0-9]*/stat 2> /dev/null | sed -E 's/^([0-9]+) \(.*\) /\1 /' | awk -v marked="$marked" -v sessions="$sessions" '
        BEGIN { split(marked, a); for (i in a) ours[a[i]]; n = split(sessions, b); for (i = 1; i < n; i += 2) since[b[i]] = b[i + 1] }
        $2 !~ /[ZX]/ { parent[$1] = $3; if (($5 in since) && $21 >= since[$5] + 0) ours[$1] }
        END {
            do { more = 0; for (pid in parent) if (!(pid in ours) && parent[pid] in ours) { ours[pid]; more = 1 } } while (more)
            for (pid in ours) if (pid in parent) print pid
        }'
}

container() {
    if [ -z "$CONTAINER" ] || ! command -v docker > /dev/null; then return; fi
    docker ps -aq --filter "name=^/?$CONTAINER\$" 2> /dev/null
}

# launch NAME COMMAND...: in the background, apart from this session; its end is kept.
launch() {
    local name=$1 stat='' waited fields
    shift
    rm -f "$FOLDER/run/$name.code" "$FOLDER/run/stopping"
    KIMI_NB_RUN=$RUN:$NODE/$name setsid bash -c '
        name=$1 log=$2 line=$3; shift 3
        "$@" >> "$log" 2>&1
        code=$? who=${KIMI_NB_RUN#*:}
        # What was killed cannot say so itself. The verb stop ends it by SIGTERM, and docker kills what
        # takes too long to.
        case $code$([ ! -e "${name%/*}/stopping" ] || echo " stopped") in
            130|143|*" stopped") ;;
            129|13?|14?|15?) printf "ERROR %(%m-%d %H:%M:%S)T [node.sh:%s] node %s: %s failed: signal SIG%s\n" \
                -1 "$line" "${who%/*}" "${who##*/}" "$(kill -l $((code - 128)))" >> "$log" ;;
        esac
        echo "$code" > "$name.code"' \
        _ "$FOLDER/run/$name" "$FOLDER/logs/$name.log" "$LINENO" "$@" < /dev/null > /dev/null 2>&1 &
    { read -r stat < "/proc/$!/stat"; } 2> /dev/null
    read -ra fields <<< "${stat##*) }"
    if ! echo "$! $(< /proc/sys/kernel/random/boot_id) ${fields[19]:-0}" > "$FOLDER/run/$name.pid"; then
        kill $!
        return 1
    fi
    disown
    # Until setsid has become it: whoever looks before would take it for gone.
    for ((waited = 0; waited < 500; waited++)); do
        if runs "$name" || [ -e "$FOLDER/run/$name.code" ] || [ ! -e "/proc/$!" ]; then break; fi
        sleep 0.01
    done
}

runs() {
    local pid rest word words=()
    { read -r pid rest < "$FOLDER/run/$1.pid"; } 2> /dev/null && [ ! -e "$FOLDER/run/$1.code" ] || return 1
    { mapfile -d '' words < "/proc/$pid/environ"; } 2> /dev/null
    for word in "${words[@]}"; do
        if [ "$word" = "KIMI_NB_RUN=$RUN:$NODE/$1" ]; then return 0; fi
    done
    return 1
}

start() {
    local port what busy=0 who out
    if ! mine; then return; fi
    #store{
    if runs engines && ! shared; then return; fi
    #}store
    if runs engines; then
        if [ "$(< "$FOLDER/run/files")" = "$FILES" ]; then
            say same engines "run"
        else
            say fail engines "run from scripts that are not these"
        fi
        return
    fi
    if [ -e "$FOLDER/run/engines.pid" ] && [ ! -e "$FOLDER/run/engines.code" ] && [ -n "$(pids engines)" ]; then
        say fail engines "processes of an earlier start are left: $(pids engines | paste -sd ' ')"
        return
    fi
    if [ -z "$DRY" ] && [ -n "$(container)" ]; then
        say fail container "$CONTAINER is there already, and not this run's"
        return
    fi
    while read -r port what; do
        # The front door outlives an engine that was killed, and is this run's own.
        if [ "$what" = "the front door" ] && runs router; then continue; fi
        #store{
        if [[ $what == store-* ]] && runs "${what%% *}"; then continue; fi
        #}store
        if [ -n "$port" ] && { : < "/dev/tcp/$ADDRESS/$port"; } 2> /dev/null; then
            who=$(ss -Hltnp "sport = :$port" 2> /dev/null | grep -o 'users:.*' | head -n 1)
            say fail port "$port, wanted for $what, is in use${who:+ by $who}"
            busy=1
        fi
    done <<< "$PORTS"
    if [ "$busy" = 1 ]; then return; fi
    if [ -n "$DRY" ]; then say change engines "start ${START[-1]##*/}"; return; fi
    cd "$FOLDER" || { say fail engines "$FOLDER is missing"; return; }
    keep_logs
    #store{
    if ! out=$(mkdir -p run logs 2>&1); then say fail store "$out"; return; fi
    if ! share; then return; fi
    #}store
    if out=$( { { [ -d run ] && [ -d logs ] || mkdir -p run logs; } && echo "$FILES" > run/files && echo "$RUN" > logs/.run; } 2>&1) \
            && launch engines "${START[@]}"; then
        say changed engines "started: ${START[-1]##*/}"
    else
        say fail engines "$FOLDER/run cannot be written: $out"
    fi
}

# Logs of an earlier start are moved, never overwritten.
keep_logs() {
    local old
    if ! compgen -G "$FOLDER/logs/*.log" > /dev/null; then return; fi
    old=$FOLDER/logs/before-$(date -u +%Y%m%dT%H%M%S%N)
    mkdir -p "$old" && mv "$FOLDER"/logs/*.log "$old"
}

# The front door, where it stands on this node.
open() {
    if ! mine; then return; fi
    if [ ${#DOOR[@]} = 0 ]; then return; fi
    if runs router; then say same router "runs"; return; fi
    if [ -n "$DRY" ]; then say change router "start proxy.sh"; return; fi
    cd "$FOLDER" || { say fail router "$FOLDER is missing"; return; }
    local inside=()
    if [ -n "$UPSTREAM" ] && [ -n "$CONTAINER" ] && [ -n "$(container)" ]; then
        # The program and what it imports are in the image. vllm-router is in none.
        inside=(docker exec -e "KIMI_NB_RUN=$RUN:$NODE/router" ${SECRET_OPTIONS[@]+"${SECRET_OPTIONS[@]}"} "$CONTAINER")
    fi
    if [ -n "$UPSTREAM" ] && [ ! -e "$UPSTREAM" ] && ! ${inside[@]+"${inside[@]}"} cp \
            "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1/$UPSTREAM" "$FOLDER/$UPSTREAM" 2> run/copy; then
        say fail router "$UPSTREAM is not in $FOLDER, nor in the image: $(tail -n 1 run/copy)"
        return
    fi
    if launch router ${inside[@]+"${inside[@]}"} "${DOOR[@]}"; then
        say changed router "started: proxy.sh"
    else
        say fail router "$FOLDER/run cannot be written"
    fi
}

stop() {
    local all name number waited
    if [ -e "$WORK/claim" ] && ! is_ours; then
        say warn claim "left alone: held by $(paste -sd ' ' "$WORK/claim")"
        return
    fi
    name=
    if [ -e "$FOLDER/run/files" ]; then name=$(container); fi
    all=$(pids)
    if [ -z "$all$name" ]; then
        say same engines "nothing runs"
        rm -rf "$FOLDER/run"
        return
    fi
    if [ -n "$DRY" ]; then say change engines "stop $(wc -w <<< "$all") processes"; return; fi
    if [ -d "$FOLDER/run" ]; then : 2> /dev/null > "$FOLDER/run/stopping"; fi
    if [ -n "$name" ]; then docker stop -t 20 "$CONTAINER" > /dev/null 2>&1; fi
    #store{
    # Each gives its part of the store back to the master, so that it ends after them.
    ends engines router weights
    ends store-service
    #}store
    for number in TERM KILL; do
        for ((waited = 0; waited < ${STOP_SECONDS:-20} * 10; waited++)); do
            all=$(pids)
            if [ -z "$all" ]; then break 2; fi
            # Once: an engine that is asked again while it ends may skip its own tidying up.
            if [ "$waited" = 0 ] || [ "$number" = KILL ]; then xargs kill "-$number" <<< "$all" 2> /dev/null; fi
            sleep 0.1
        done
    done
    if [ -n "$(container)" ]; then docker rm -f "$CONTAINER" > /dev/null 2>&1; fi
    all=$(pids)
    if [ -n "$all$(container)" ]; then
        say fail engines "still there: processes $all, container $(container)"
        return
    fi
    rm -rf "$FOLDER/run"
    say changed engines "stopped"
}

# What runs, and how it ended: fact lines.
state() {
    local name
    if [ -e "$WORK/claim" ]; then say fact claim "$(paste -sd ' ' "$WORK/claim")"; fi
    for name in engines router; do
        if runs "$name"; then
            say fact "$name" runs
        elif [ -e "$FOLDER/run/$name.code" ]; then
            say fact "$name" "ended $(cat "$FOLDER/run/$name.code")"
        elif [ -e "$FOLDER/run/$name.pid" ]; then
            # What watched it is gone: with all of it, or without.
            say fact "$name" "ended 137$([ -z "$(pids "$name")" ] || echo ', and left processes behind')"
        fi
    done
    #store{
    for name in store-master store-service; do
        if runs "$name"; then
            say fact "$name" runs
        elif [ -e "$FOLDER/run/$name.code" ]; then
            say fact "$name" "ended $(cat "$FOLDER/run/$name.code")"
        elif [ -e "$FOLDER/run/$name.pid" ]; then
            say fact "$name" "ended 137"
        fi
    done
    #}store
    # A container's processes did not inherit what ours are found by.
    if [ -z "$IMAGE" ]; then say fact memory "$(memory)"; fi
}

# KB of the run's processes, shared pages counted once.
memory() {
    local pid
    for pid in $(pids); do cat "/proc/$pid/smaps_rollup" 2> /dev/null; done \
        | awk '$1 == "Pss:" {sum += $2} END {print sum + 0}'
}

# The logs from where they were read last: SEEN is "name bytes" a line.
tails() {
    local file name size seen more owner=
    # Logs of another deployment are not this one's to tell.
    { read -r owner < "$FOLDER/logs/.run"; } 2> /dev/null
    if [ "$owner" != "$RUN" ]; then return; fi
    for file in "$FOLDER"/logs/*.log; do
        if [ ! -e "$file" ]; then continue; fi
        name=${file##*/}
        size=$(stat -c %s "$file")
        seen=$(awk -v name="$name" '$1 == name {print $2}' <<< "${SEEN:-}")
        # A log that is shorter than it was is another one.
        if [ "${seen:-0}" -gt "$size" ]; then seen=0; fi
        more=$((size - ${seen:-0}))
        if [ "$more" -gt 262144 ]; then more=262144; fi
        if [ "$more" -gt 0 ]; then
            say fact log "$name ${seen:-0} $(tail -c "+$((${seen:-0} + 1))" "$file" | head -c "$more" | base64 -w 0)"
        fi
    done
}

# The scripts themselves: a new folder takes the place of the old one, with its logs.
push() {
    local out file new=$FOLDER.new.$$ have=
    if ! mine; then return; fi
    { read -r have < "$FOLDER/.files"; } 2> /dev/null
    if [ "$have" = "$FILES" ]; then say same scripts "${FOLDER%/*}"; return; fi
    if [ -n "$DRY" ]; then
        for file in "$FOLDER"/*; do
            # For the reader's diff; what is not ours to show (a core, a checkpoint) is no script.
            if [ -f "$file" ] && [ "$(stat -c %s "$file")" -lt 262144 ]; then say fact file "${file##*/} $(base64 -w 0 "$file")"; fi
        done
        say change scripts "${have:+other ones }in ${FOLDER%/*}"
        return
    fi
    if runs engines; then say fail scripts "the engines run from other scripts"; return; fi
    if out=$(replace "$new" 2>&1); then
        say changed scripts "in ${FOLDER%/*}"
    else
        rm -rf "$new"
        say fail scripts "$out"
    fi
}

# At every moment FOLDER or FOLDER.old is whole.
replace() {
    if compgen -G "$FOLDER.new.*" > /dev/null; then rm -rf "$FOLDER".new.*; fi
    if [ -d "$FOLDER.old" ] && [ ! -d "$FOLDER" ]; then mv "$FOLDER.old" "$FOLDER" || return; fi
    mkdir -p "$1/run" "$1/logs" && base64 -d <<< "$ARCHIVE" | tar --no-same-owner --no-same-permissions -xf - -C "$1" || return
    if [ -d "$FOLDER/logs" ]; then cp -a "$FOLDER/logs" "$1/" || return; fi
    echo "$FILES" > "$1/.files" || return
    if [ -d "$FOLDER" ]; then rm -rf "$FOLDER.old" && mv "$FOLDER" "$FOLDER.old" || return; fi
    mv "$1" "$FOLDER" || return
    if [ -d "$FOLDER.old" ]; then rm -rf "$FOLDER.old"; fi
}

for verb in "$@"; do
    say fact verb "$verb"
    case $verb in
        dry) DRY=1 ;;
        look|claim|prepare|engine|weights|push|start|open|stop|release|state|tails) "$verb" ;;
        *) say fail verb "$verb is not known"; exit 2 ;;
    esac
    # Everything is looked at; nothing is done on top of what has failed.
    if [ $failed = 1 ] && [ -z "$DRY" ] && [ "$verb" != claim ]; then break; fi
done
exit $failed
