"""Run an exported Wiola bundle: one folder in, text out.

```python
import wiola_runtime as wr

model = wr.load("wiola-120m-int8")
print(model.generate("It is a truth", max_new_tokens=64).text)
```
"""

from wiola_runtime.errors import (
    BundleError,
    CapacityError,
    DeviceError,
    GenerationError,
    SelfTestError,
    WiolaRuntimeError,
)
from wiola_runtime.manifest import Manifest
from wiola_runtime.model import Model, load
from wiola_runtime.reply import Piece, Result, Timings
from wiola_runtime.sampling import Sampling
from wiola_runtime.self_test import SelfTestReport
from wiola_runtime.text import Tokenizer

__all__ = [
    "BundleError",
    "CapacityError",
    "DeviceError",
    "GenerationError",
    "Manifest",
    "Model",
    "Piece",
    "Result",
    "Sampling",
    "SelfTestError",
    "SelfTestReport",
    "Timings",
    "Tokenizer",
    "WiolaRuntimeError",
    "load",
]
