"""SmolLM2 as a Q8_0 GGUF file, made once from the Q4_1 file at hand.

For speed only: rounding weights that were rounded before does not make a better model. Matrices become
Q8_0 (blocks of 32 weights, one half-precision scale each, round to nearest), vectors stay float32, and
all metadata is copied. Needs the package `gguf`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from reference_engine.catalog import GGUF_NAME, fetch_smollm2, smollm2_gguf

Q8_NAME = GGUF_NAME.replace("Q4_1", "Q8_0")
LEFT_TO_WRITER = ("general.architecture", "general.file_type", "general.quantization_version")


def smollm2_q8() -> Path:
    """Where the file is; written beside the original when it is not there yet."""
    fetch_smollm2()
    source = smollm2_gguf()
    done = source.with_name(Q8_NAME)
    if not done.exists():
        with tempfile.TemporaryDirectory(dir=source.parent, prefix=".partial-") as name:
            partial = Path(name) / Q8_NAME
            write_q8(source, partial)
            partial.replace(done)
    return done


def write_q8(source: Path, target: Path) -> None:
    """A GGUF file again, its matrices in Q8_0."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = gguf.GGUFWriter(target, architecture.contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in LEFT_TO_WRITER:
            continue
        item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], item)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    q8 = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if weights.ndim == 1:
            writer.add_tensor(tensor.name, weights)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(weights, q8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    print(smollm2_q8())
