"""git: clone, push and fetch over HTTP, forwarded and through tunnels to an origin inside TLS.

git asks what login the proxy wants before it sends one (`http.proxyAuthMethod` is `anyauth`), so each of its connections
begins with a refusal where proxyd asks for one.
"""

import os
import pathlib
import tempfile

from common import *

WAYS = (PLAIN, TLS)
HEARTY = BIG[:4_000_000]


def git(folder, *arguments, status=0, proxy=PROXY):
    return command("git", "-c", f"http.proxy={proxy}", "-c", f"http.sslCAInfo={CA}", *arguments,
                   folder=folder, status=status, **IDENTITY)


def served():
    """A new repository at the origin with two commits; its name there."""
    bare = tempfile.mkdtemp(dir=WORK / "git", suffix=".git")
    git(bare, "init", "--quiet", "--bare", "--initial-branch=main")
    seed = tempfile.mkdtemp(dir=WORK)
    git(seed, "init", "--quiet", "--initial-branch=main")
    for number in range(2):
        commit(seed, f"file-{number}", BIG[number * 1_000_000:][:700_000])
    git(seed, "push", "--quiet", bare, "main")
    return os.path.basename(bare)


def commit(folder, name, content):
    (pathlib.Path(folder) / name).write_bytes(content)
    git(folder, "add", name)
    git(folder, "commit", "--quiet", "--message", f"add {name}")


def clone(base, name, *arguments, **settings):
    folder = tempfile.mkdtemp(dir=WORK)
    git(folder, "clone", "--quiet", *arguments, f"{base}/git/{name}", ".", **settings)
    return folder


def tip(folder):
    return git(folder, "rev-parse", "main")[0]


@case(*WAYS)
def clone_push_fetch(base):
    name = served()
    ours, theirs = clone(base, name), clone(base, name)
    same(pathlib.Path(ours, "file-1").read_bytes(), BIG[1_000_000:1_700_000])
    # More than `http.postBuffer`: sent in chunks, length unknown.
    commit(ours, "hearty", HEARTY)
    git(ours, "push", "--quiet", "origin", "main")
    same(tip(WORK / "git" / name), tip(ours))
    git(theirs, "pull", "--quiet")
    same(pathlib.Path(theirs, "hearty").read_bytes(), HEARTY)


@case(*WAYS)
def push_with_a_length(base):
    name = served()
    ours = clone(base, name)
    commit(ours, "hearty", HEARTY)
    git(ours, "-c", "http.postBuffer=10000000", "push", "--quiet", "origin", "main")
    same(tip(WORK / "git" / name), tip(ours))


@case(*WAYS)
def shallow_and_old_protocol(base):
    name = served()
    same(len(git(clone(base, name, "--depth=1"), "log", "--oneline")[0].splitlines()), 1)
    same(len(git(clone(base, name, "--config", "protocol.version=0"), "log", "--oneline")[0].splitlines()), 2)


@case(*WAYS)
def many_commits(base):
    """Bodies that git packs with gzip, and many small objects."""
    name = served()
    ours = clone(base, name)
    for number in range(12):
        commit(ours, f"note-{number}", b"note %d\n" % number)
        git(ours, "branch", f"branch-{number}")
    git(ours, "push", "--quiet", "--all", "origin")
    theirs = clone(base, name)
    same(tip(theirs), tip(ours))
    same(len(git(theirs, "branch", "--remotes")[0].splitlines()), 14)


@case(*WAYS)
def no_such_repository(base):
    _, told = git(WORK, "ls-remote", f"{base}/git/none.git", status=128)
    check("not found" in told, told[-300:])


@case
def refused_port():
    for scheme, words in (("http", "502"), ("https", "502")):
        _, told = git(WORK, "ls-remote", f"{scheme}://{REFUSED}/r.git", status=128)
        check(words in told, told[-300:])


@case(only=ASKS)
def wrong_login():
    name = served()
    for proxy in (PROXY_WRONG, PROXY_PLAIN):
        for base in WAYS:
            _, told = git(WORK, "ls-remote", f"{base}/git/{name}", status=128, proxy=proxy)
            check("407" in told, told[-300:])


IDENTITY = {
    "GIT_AUTHOR_NAME": "committer", "GIT_AUTHOR_EMAIL": "committer@localhost", "GIT_COMMITTER_NAME": "committer",
    "GIT_COMMITTER_EMAIL": "committer@localhost", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
}

run()
