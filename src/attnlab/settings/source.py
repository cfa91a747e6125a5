"""The digest of the user's own code, and of what it computes with, by which runs are told apart.

Not seen are files that code reads, modules that it imports by a computed name, and objects that it
holds beside plain values, such as tensors.
"""

import ast
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dis import get_instructions
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions, requires, version
from importlib.util import resolve_name as absolute_name
from pathlib import Path, PurePath
from pkgutil import resolve_name
from types import CodeType, FunctionType, ModuleType

import torch

from attnlab.settings.own_code import (
    Node,
    file_of_module,
    functions_of_member,
    import_paths,
    is_users_file,
    source_text,
)
from attnlab.settings.roles import MAIN

TYPES_OF_PYTHON = (bool, int, float, complex, str, bytes, type(None), range, PurePath)
TYPES_OF_TORCH = (torch.dtype, torch.device, torch.Size)


def source_of(node: Node) -> str | None:
    """The SHA-256 of the user's own code that a node names, and of what it computes with; None if
    it names none. For attn._target_=my_layers.Layer, that is the file my_layers.py, and what
    `CodeBeside` finds. The object must have been built, so that its module is loaded."""
    names = sorted(import_paths(node))
    of_main = [name for name in names if name.startswith(MAIN)]
    modules = sorted({name.rpartition(".")[0] for name in names if name not in of_main})
    modules = [name for name in modules if name in sys.modules]
    files = [file_of_module(name) for name in modules]
    own = [file.read_bytes() for file in files if file is not None and is_users_file(file)]
    own += [source_text(resolve_name(name)).encode() for name in of_main]
    beside = CodeBeside("__main__", modules)
    for name in modules:
        beside.read_imports(name)
    for name in of_main:
        beside.read(resolve_name(name))
    own += beside.found
    return hashlib.sha256(b"".join(own)).hexdigest() if own else None


def source_of_class(cls: type) -> str:
    """The SHA-256 of a class that Python hands over, and of what it computes with."""
    beside = CodeBeside(cls.__module__)
    beside.read(cls)
    return hashlib.sha256(b"".join([source_text(cls).encode(), *beside.found])).hexdigest()


class CodeBeside:
    """What own code computes with beside its own text, in `found`.

    - Of classes and functions of the module `home`, what they read there and from functions around
      them: other functions and classes by their source, plain values by their text.
    - Modules of the user's own folders that they use, or that a module imports: their files.
    - Installed packages by name and version, except those that attnlab needs: they compute the
      baseline, too.
    """

    def __init__(self, home: str, modules: Iterable[str] = ()) -> None:
        """The text of `modules` is known."""
        self.found: list[bytes] = []
        self.unseen: list[str] = []  # names of values whose changes are not seen
        self.files: set[str] = set()  # with the source of what was read, also cells
        self._home = home
        self._modules = {home, *modules}
        self._defined: set[object] = set()

    def read(self, defined: object) -> None:
        """What a class or function reads whose own text is known."""
        if inspect.isclass(defined):
            self._read_class(defined)
        elif inspect.isfunction(defined):
            self._read_function(defined, known=True)

    def read_imports(self, module: str) -> None:
        """What a module of the user's imports; of an installed one, the version of its package."""
        file = file_of_module(module) or file_of_unloaded(module)
        if file is None:
            return
        if not is_users_file(file):
            self._read_package(module.partition(".")[0])
        elif file.suffix == ".py":
            for name in imports_of(module, file):
                self._read_module(name)

    def _read_module(self, name: str) -> None:
        if name in self._modules:
            return
        self._modules.add(name)
        file = file_of_module(name) or file_of_unloaded(name)
        if file is not None and is_users_file(file):
            self.found.append(f"\n{name}\n".encode() + file.read_bytes())
        self.read_imports(name)

    def _read_package(self, name: str) -> None:
        if name in needed_by_attnlab() or name in sys.stdlib_module_names:
            return
        for package in sorted({*packages_distributions().get(name, ())}):
            if package.lower() not in needed_by_attnlab():
                line = f"\n{package} {version(package)}\n".encode()
                if line not in self.found:
                    self.found.append(line)

    def _read_class(self, cls: type) -> None:
        if cls in self._defined:
            return
        self._defined.add(cls)
        for base in cls.__mro__[1:]:
            if base.__module__ == self._home == "__main__":
                self._read_class(base)  # `source_text` has it
            else:
                self._read_value(base.__qualname__, base)
        inside = f"{cls.__qualname__}."
        stated = values_in_text(cls)
        for name, value in sorted(vars(cls).items()):
            for function in functions_of_member(value):
                self._read_function(function, known=function.__qualname__.startswith(inside))
            if inspect.isclass(value) and value.__qualname__.startswith(inside):
                self._read_class(value)
            elif name in stated and stated[name] != repr(value):
                self._read_value(name, value)

    def _read_function(self, function: FunctionType, *, known: bool) -> None:
        if function in self._defined:
            return
        self._defined.add(function)
        wrapped = vars(function).get("__wrapped__")
        if inspect.isfunction(wrapped):  # it has the text that belongs to the name
            self._read_function(wrapped, known=known)
            known = False
        around = closed_over(function)
        module = function.__globals__["__name__"]
        if module != self._home:
            self._read_module(module)
            # Such as the function that `@kernel` makes a kernel of.
            around = {
                key: value
                for key, value in around.items()
                if inspect.isfunction(value) and value.__module__ == self._home
            }
        else:
            self.files.add(function.__code__.co_filename)
            if not known:
                self.found.append(f"\n{inspect.getsource(function.__code__)}".encode())
            around |= globals_of(function) | defaults_by_name(function)
            for imported in imports_inside(function):
                self._read_module(imported)
        for name, value in sorted(around.items()):
            self._read_value(name, value)

    def _read_value(self, name: str, value: object) -> None:
        if callable(value) and not inspect.isfunction(value):  # as `lru_cache` returns
            value = inspect.unwrap(value)
        if isinstance(value, ModuleType):
            self._read_module(value.__name__)
        elif inspect.isfunction(value):
            self._read_function(value, known=False)
        elif isinstance(value, partial):
            self._read_value(name, value.func)
            for n, argument in enumerate(value.args):
                self._read_value(f"{name}.{n}", argument)
            for key, argument in sorted(value.keywords.items()):
                self._read_value(f"{name}.{key}", argument)
        elif inspect.isclass(value) and value.__module__ == self._home:
            if value not in self._defined:
                self.found.append(f"\n{source_text(value)}".encode())
                self._read_class(value)
        elif inspect.ismethod(value):
            self._read_value(name, value.__func__)
            self._read_value(f"the object of {name}", value.__self__)
        elif inspect.isclass(value) or inspect.isroutine(value):
            if value.__module__ is not None:
                self._read_module(value.__module__)
        elif is_told_by_text(value):
            self.found.append(f"\n{name} = {value_text(value)}".encode())
        else:
            self.unseen.append(name)


def file_of_unloaded(name: str) -> Path | None:
    """The file of a module that is not loaded yet; nothing is loaded for it."""
    places = None
    origin = None
    for end in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:end]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
        origin = spec.origin if spec.has_location else None
    return None if origin is None else Path(origin)


def imports_of(module: str, file: Path) -> list[str]:
    """The modules that the text of a module imports, also inside functions, those above them, and
    the names that it takes from them, which may be modules, too."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names = {package} if package else set()
    for statement in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                base = absolute_name("." * statement.level + base, package)
            names.update(f"{base}.{alias.name}" for alias in statement.names)
    for name in [*names]:
        parts = name.split(".")
        names.update(".".join(parts[:end]) for end in range(1, len(parts)))
    return sorted(names)


@cache
def needed_by_attnlab() -> set[str]:
    """The packages that attnlab needs, and itself."""
    lines = [line for line in requires("attnlab") or () if "extra ==" not in line]
    return {"attnlab"} | {re.split(r"[^\w.-]", line)[0].lower() for line in lines}


def globals_of(function: FunctionType) -> dict[str, object]:
    """The globals that a function reads, also in functions inside it, by name."""
    names = operands_of(function, "LOAD_GLOBAL", "LOAD_NAME")
    defined = function.__globals__
    return {name: defined[name] for name in sorted(names) if name in defined}


def imports_inside(function: FunctionType) -> list[str]:
    """The modules that a function imports when it is called."""
    return sorted(name for name in operands_of(function, "IMPORT_NAME") if name)


def operands_of(function: FunctionType, *operations: str) -> set[str]:
    """The arguments of some operations of Python's, in a function and in those inside it."""
    found = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for instruction in get_instructions(code):
            if instruction.opname in operations:
                found.add(instruction.argval)
    return found


def closed_over(function: FunctionType) -> dict[str, object]:
    """The variables of functions around a function that it reads, by name."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            values[name] = cell.cell_contents
    return values


def defaults_by_name(function: FunctionType) -> dict[str, object]:
    """The defaults of a function that its text does not state, as `width=WIDTH` does not."""
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(function, follow_wrapped=False).parameters.values()
        if parameter.default is not parameter.empty
    }
    stated = set()
    for node in ast.walk(parsed(function)):
        if isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            last = positional[len(positional) - len(node.defaults) :]
            pairs = [*zip(last, node.defaults, strict=True)]
            pairs += [
                (name, value)
                for name, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)
                if value is not None
            ]
            stated = {name.arg for name, value in pairs if literal_text(value)}
            break  # those of functions inside it follow
    return {name: value for name, value in defaults.items() if name not in stated}


def values_in_text(cls: type) -> dict[str, str]:
    """The values that the body of a class gives to names: as `repr` if they are literals, and
    else "". Empty where `source_text` has no text of the class, but its values."""
    try:
        (definition,) = parsed(cls).body
    except (OSError, TypeError):
        return {}
    assert isinstance(definition, ast.ClassDef)
    values = {}
    for statement in definition.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                value = statement.value  # type: ignore[attr-defined]
                values[target.id] = literal_text(value)
    return values


def parsed(defined: Callable[..., object]) -> ast.Module:
    """The syntax tree of a class or function; empty if its lines are a part of a statement, as
    those of a lambda may be."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(defined)))
    except SyntaxError:
        return ast.Module([], [])


def literal_text(node: ast.expr) -> str:
    """The value of an expression as `repr` has it if the text alone says it, and else ""."""
    try:
        return repr(ast.literal_eval(node))
    except (ValueError, TypeError):  # it is to be computed
        return ""


def is_told_by_text(value: object) -> bool:
    """Whether the text of a value says all of it."""
    if isinstance(value, dict):
        return all(map(is_told_by_text, [*value.keys(), *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_told_by_text, value))
    return isinstance(value, (*TYPES_OF_PYTHON, *TYPES_OF_TORCH))


def value_text(value: object) -> str:
    """A plain value as text that is the same in each process."""
    if isinstance(value, set | frozenset):
        return str(sorted(map(value_text, value)))
    return repr(value)
