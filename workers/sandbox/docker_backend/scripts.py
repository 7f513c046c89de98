"""What runs inside a container besides the agent: plain sh, so that an image needs no more than that.

FIRST is the child of the container's first process, which is the engine's own init and reaps what is orphaned; sh
can't do that. It is root with the one right to kill, which the agent is not, so that nothing of the agent's can
end, trace or imitate it. It lives as long as somebody holds its stdin, and the container as long as it does. At
the word `kill` it ends every other process without needing a new one; it answers each word with how often the
kernel has killed for memory and refused another process, and `disk` with the blocks and inodes left as well.

RUN runs one command and tells how it ended, on both streams, behind a word that only its stdin gave. A signal
is told from an exit code by what sh itself says of it; of SIGINT and SIGPIPE it says nothing, so that those
two are taken from the code.
"""

from __future__ import annotations

FIRST = r"""
trap '' HUP INT QUIT TERM PIPE
while IFS= read -r word; do
  [ "${word%% *}" = kill ] && kill -9 -1 2>/dev/null
  kills=0 refused=0
  for file in memory/memory.oom_control memory.events; do
    if [ -r "/sys/fs/cgroup/$file" ]; then
      while read -r key value; do [ "$key" = oom_kill ] && kills=$value; done <"/sys/fs/cgroup/$file"
    fi
  done
  for file in pids/pids.events pids.events; do
    if [ -r "/sys/fs/cgroup/$file" ]; then
      while read -r key value; do [ "$key" = max ] && refused=$value; done <"/sys/fs/cgroup/$file"
    fi
  done
  free=
  [ "${word%% *}" = disk ] && free=$(stat -f -c '%a %d' "$1" 2>/dev/null)
  echo "$word $kills $refused ${free:-? ?}"
done
"""

RUN = r"""
IFS= read -r word || exit 126
cd -- "$1" 2>/dev/null || {
  echo "$1: cannot enter this folder" >&2
  printf '%s 126 0 ' "$word"; printf '%s 126 0 ' "$word" >&2
  exit 126
}
[ "$2" = none ] && exec </dev/null
[ -n "$3" ] && ulimit -n "$3"
[ -n "$4" ] && { ulimit -H -t $(($4 + 1)); ulimit -S -t "$4"; }
shift 4
if [ "$1" = bash ] && [ "$2" = -c ] && ! command -v bash >/dev/null; then shift; set -- sh "$@"; fi
exec 8>&1 9>&2
said=$( { (exec "$@" >&8 2>&9 8>&- 9>&-); echo "/$?"; } 2>&1 )
code=${said##*/}
case $code in ''|*[!0-9]*) echo "$said" >&2; code=126;; esac
signalled=0
if [ "$code" -gt 128 ]; then
  [ -n "${said%/*}" ] && signalled=1
  case $code in 130|141) signalled=1;; esac
fi
printf '%s %s %s ' "$word" "$code" "$signalled"
printf '%s %s %s ' "$word" "$code" "$signalled" >&2
"""

# Both name what stopped them by the error number as their exit code.
READ = r"""
LC_ALL=C; export LC_ALL
if [ -d "$1" ]; then exit 21; fi
if [ ! -e "$1" ]; then
  case $( { : <"$1"; } 2>&1 ) in *ermission*) exit 13;; *) exit 2;; esac
fi
[ -f "$1" ] || exit 22
[ -r "$1" ] || exit 13
head -c "$2" <"$1"
"""

WRITE = r"""
LC_ALL=C; export LC_ALL; umask 022
case $1 in */*) parent=${1%/*};; *) parent=.;; esac
said=$(mkdir -p -- "${parent:-/}" 2>&1)
if [ $? = 0 ]; then
  [ -d "$1" ] && exit 21
  [ -e "$1" ] && [ ! -f "$1" ] && exit 22
  exec 7>&0
  said=$( { cat <&7 >"$1"; } 2>&1 ) && exit 0
fi
case $said in
  *"ot a directory"*|*"File exists"*|*"nonexistent"*) exit 20;;
  *ermission*) exit 13;;
  *"o space"*) exit 28;;
  *"ead-only"*) exit 30;;
  *"too long"*) exit 36;;
  *) exit 5;;
esac
"""
