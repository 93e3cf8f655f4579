"""The grammar library: xgrammar's C++, without its Python package, which would bring transformers and pydantic along.

Loading it takes some hundred milliseconds and is left to the first who wants it. Knows neither models nor requests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SwitchedOffError
from .grammar import MAX_BLANKS, Grammar, Syntax

_PACKAGE, _BINDINGS = "xgrammar", "libxgrammar_bindings.so"
_KEYS = "xgrammar.tvm_ffi_binding"
# Of its kinds of vocabulary: tokens are the bytes that they add.
_RAW = 0
_NO_CACHE, _NO_LIMIT = False, -1
_PLACE = re.compile(r"^\[[\d:]+\] \S+?:\d+: (?:Check failed: \(.*?\) is false: )?")


def check_installed() -> None:
    """Raises SwitchedOffError if the library is not there. Loads nothing."""
    if _file() is None or importlib.util.find_spec("tvm_ffi") is None:
        raise SwitchedOffError(
            "structured output needs xgrammar, which is not installed here; `make setup` installs it, as does "
            "`pip install --no-deps xgrammar apache-tvm-ffi`",
            metadata={"package": "xgrammar"},
        )


class Vocabulary:
    """The tokens of a model as the library knows them."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> Vocabulary:
        """Of what each token adds to a text, by id. What adds nothing is never part of a sentence."""
        return cls(_types()["TokenizerInfo"](list(pieces), _RAW, len(pieces), [], False))


class CompiledGrammar:
    """A grammar for a vocabulary. Never changes: any number of matchers use it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, about."""
        return int(self._handle.memory_size_bytes())

    def matcher(self, end_ids: Sequence[int]) -> Matcher:
        """Before the first token. `end_ids` may come where the grammar is complete, and nowhere else."""
        return Matcher(_types()["GrammarMatcher"](self._handle, list(end_ids), False, _NO_LIMIT, None))


class Matcher:
    """How far a text has come in a grammar."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def accept(self, token_id: int) -> bool:
        """Goes on by a token; False, and nothing is changed, if it does not fit."""
        return bool(self._handle.accept_token(token_id, False))

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        """Sets the bits of the tokens that may come next, low ones first, in `mask` [1, V / 32 rounded up], and clears
        all others."""
        if not self._handle.fill_next_token_bitmask(mask, 0, False):
            mask.fill(-1)


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary, num_threads: int) -> CompiledGrammar:
    """Takes as much time and memory as the grammar asks for. Raises ValueError with the library's reason if it is none,
    MemoryError."""
    compiler = _types()["GrammarCompiler"](vocabulary.handle, num_threads, _NO_CACHE, _NO_LIMIT, False)
    try:
        match grammar.syntax:
            case Syntax.JSON_SCHEMA:
                handle = compiler.compile_json_schema(grammar.text, True, None, None, True, MAX_BLANKS, False)
            case Syntax.REGEX:
                handle = compiler.compile_regex(grammar.text)
            case Syntax.EBNF:
                handle = compiler.compile_grammar_from_strings(grammar.text, "root")
            case Syntax.STRUCTURAL_TAG:
                handle = compiler.compile_structural_tag(grammar.text)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        if "bad_alloc" in str(error):
            raise MemoryError from None
        raise ValueError(_reason(error)) from None
    return CompiledGrammar(handle)


def _reason(error: Exception) -> str:
    """What the library says is wrong, without where in its own files it found that."""
    text = " ".join(str(error).split())
    text = _PLACE.sub("", text)
    # It repeats what it was given.
    return text.partition(" The JSON string is:")[0]


def _file() -> Path | None:
    # Without importing the package.
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec is not None else []
    return next((file for folder in folders if (file := folder / _BINDINGS).is_file()), None)


@functools.cache
def _types() -> dict[str, Any]:
    """The library's classes, by name."""
    check_installed()
    # With some versions of torch it would build an extension now, for tensors that nobody gives it.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    import tvm_ffi

    file = _file()
    assert file is not None
    tvm_ffi.load_module(file)
    names = ("TokenizerInfo", "GrammarCompiler", "CompiledGrammar", "GrammarMatcher")
    return {
        name: tvm_ffi.register_object(f"{_KEYS}.{name}")(type(name, (tvm_ffi.Object,), {"__slots__": ()}))
        for name in names
    }
