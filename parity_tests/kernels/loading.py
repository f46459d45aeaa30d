"""What a command line names: objects of modules, and limits as JSON."""

import json
import sys
from importlib import import_module
from typing import Any


def loaded(text: str) -> Any:
    """The object `package.module:name`, or the fields of a JSON object.

    Raises:
        ValueError: neither, or there is no such module or name.
    """
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"attn-parity kernel: expected a JSON object, got {text!r}: {error}; mend it") from None
    module, _, name = text.partition(":")
    if not module or not name:
        rule = "package.module:name"
        raise ValueError(f"attn-parity kernel: expected {rule}, got {text!r}; name the module and what is in it")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"attn-parity kernel: expected a name in a module, got {text!r}: {error}; mend it") from None
    return found
