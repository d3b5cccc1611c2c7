"""Run an exported Wiola bundle: one folder in, text out.

```python
import wiola_runtime as wr

model = wr.load("wiola-120m-int8")
print(model.generate("It is a truth", max_new_tokens=64).text)
```
"""

from wiola_runtime.cancel import Cancellation, Cancelled
from wiola_runtime.clock import Timings
from wiola_runtime.config import GenerationConfig
from wiola_runtime.errors import (
    BundleError,
    CapacityError,
    ChatError,
    DeviceError,
    GenerationError,
    SelfTestError,
    SessionError,
    WiolaRuntimeError,
)
from wiola_runtime.manifest import Manifest
from wiola_runtime.model import Model, load
from wiola_runtime.reply import Piece, Result, TokenLogprobs
from wiola_runtime.self_test import SelfTestReport
from wiola_runtime.session import Session
from wiola_runtime.text import Tokenizer

__all__ = [
    "BundleError",
    "Cancellation",
    "Cancelled",
    "CapacityError",
    "ChatError",
    "DeviceError",
    "GenerationConfig",
    "GenerationError",
    "Manifest",
    "Model",
    "Piece",
    "Result",
    "SelfTestError",
    "SelfTestReport",
    "Session",
    "SessionError",
    "Timings",
    "TokenLogprobs",
    "Tokenizer",
    "WiolaRuntimeError",
    "load",
]
