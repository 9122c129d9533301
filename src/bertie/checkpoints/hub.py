"""The Hugging Face Hub: download and upload model folders, and the ids of downloaded models."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.base.errors import UsageError, UserError, first_line

COMMIT = "Upload a model with bertie"
ON_EVERY_REPO = frozenset({".gitattributes"})
"""Files that the hub writes itself."""


def hub_id(folder: Path) -> str:
    """Return the hub id of a folder in the cache of downloads: …/models--OWNER--NAME/snapshots/HASH. Empty: it is none."""
    parts = folder.absolute().parts
    names = [name for name, below in pairwise(parts) if below == "snapshots"]
    return next((name[8:].replace("--", "/") for name in reversed(names) if name.startswith("models--")), "")


def names_in(repo: str) -> list[str]:
    """Return the names of the files of a repository. Raises UsageError."""
    import huggingface_hub

    try:
        return [file.rfilename for file in huggingface_hub.model_info(repo).siblings or ()]
    except Exception as error:  # the hub's client raises errors of its own, of its HTTP library and of the system
        raise _failed(repo, error) from error


def download(repo: str, names: Iterable[str], commit: str | None = None) -> Path:
    """Download files of a repository, and return its folder in the cache. commit: None for the newest. Raises UsageError."""
    import huggingface_hub

    try:
        patterns = sorted(map(glob.escape, names))
        return Path(huggingface_hub.snapshot_download(repo, revision=commit, allow_patterns=patterns))
    except Exception as error:  # as in `names_in`
        raise _failed(repo, error) from error


def downloaded(repo: str) -> Path | None:
    """Return the folder that an earlier download left in the cache; None: there is none."""
    import huggingface_hub

    with suppress(Exception):  # as in `names_in`
        return Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
    return None


def _failed(repo: str, error: Exception) -> UsageError:
    return UsageError(f"{repo} is not a folder, and the download from the hub failed: {first_line(error)}")


def require_repo(repo: str | None, public: bool = False) -> None:
    """Check, without a network, that a model can be uploaded.

    Args:
        repo: Name of the repository: OWNER/NAME, or NAME for one of your own. None: nothing is uploaded.
        public: Whether anyone can see it.

    Raises:
        UsageError: No repository can have this name, there is no token, or there is nothing to be public.
    """
    if repo is None:
        if public:
            raise UsageError("--public needs a repository of the hub: add --push OWNER/NAME, or remove --public")
        return
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        reason = first_line(error).rstrip(".")
        raise UsageError(f"{repo[:100]!r} is not the name of a repository, such as me/my-bert: {reason}") from error
    if get_token() is None:
        raise UsageError("found no token for the hub: log in with `hf auth login`, or set HF_TOKEN")


def push(folder: Path, repo: str, public: bool = False) -> str:
    """Upload a model folder to a repository, which is created if it does not exist, in one commit.

    Args:
        folder: The folder.
        repo: As for `require_repo`.
        public: Whether anyone can see the repository.

    Returns:
        The address of the repository.

    Raises:
        UserError: The repository holds files, or is not as public as asked for, or the upload failed. The repository then
            has none of the files, and the folder is as before.
    """
    from huggingface_hub import HfApi

    remedy = f"{folder} is complete; upload it with `hf upload {repo} {folder}`"
    try:
        api = HfApi(library_name="bertie")
        url = api.create_repo(repo, private=not public, exist_ok=True)
        info = api.model_info(url.repo_id)
        present = sorted({file.rfilename for file in info.siblings or ()} - ON_EVERY_REPO)
        if not present and info.private is not public:
            api.upload_folder(repo_id=url.repo_id, folder_path=folder, commit_message=COMMIT)
            console.info(f"uploaded to {url}")
            return str(url)
    except Exception as error:  # the hub's client raises errors of its own, of its HTTP library and of the system
        raise UserError(f"the upload to {repo} failed: {_reason(error)}; {remedy}") from error
    if present:
        raise UserError(
            f"{repo} already holds {present[0]}, and a repository holds only one model: give another name; {remedy}"
        )
    seen = "private: omit" if public else "public: give"
    raise UserError(f"{repo} already exists and is {seen} --public; {remedy}")


def _reason(error: BaseException) -> str:
    """Return what the server said, or else the first line of the first cause."""
    response: Any = getattr(error, "response", None)
    if response is not None:
        said = getattr(error, "server_message", None) or response.reason_phrase
        return f"{response.status_code}, {' '.join(str(said).split())[:200]}"
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # which file, but not why
        return _reason(error.__cause__)
    return first_line(error)[:200]
