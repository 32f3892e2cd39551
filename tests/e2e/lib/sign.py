"""A checkpoint's manifest, told a second time: by libxxhash, but by nothing of this program.

    sign.py check FOLDER   whether the manifest is what its files make it
    sign.py sign FOLDER    makes it so: what who tampers with a checkpoint can do as well"""

import ctypes
import json
import pathlib
import sys

PIECE = 1 << 20


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


library = ctypes.CDLL("libxxhash.so.0")
library.XXH3_128bits.restype = Hash
library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def digest(data):
    found = library.XXH3_128bits(data, len(data))
    return found.high.to_bytes(8, "big") + found.low.to_bytes(8, "big")


def of_file(data):
    pieces = [digest(data[at : at + PIECE]) for at in range(0, len(data), PIECE)] or [digest(b"")]
    return (pieces[0] if len(pieces) == 1 else digest(b"".join(pieces))).hex()


def compact(value):
    """As Jansson writes it with 17 digits."""
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k) + ":" + compact(value[k]) for k in sorted(value)) + "}"
    if isinstance(value, float):
        text = f"{value:.17g}"
        if "e" in text:
            mantissa, exponent = text.split("e")
            return f"{mantissa}e{int(exponent)}"
        return text if "." in text else text + ".0"
    return json.dumps(value)


def signed(folder):
    path = pathlib.Path(folder)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("xxh3_128", None)
    for name, entry in manifest["files"].items():
        data = (path / name).read_bytes()
        entry |= {"bytes": len(data), "xxh3_128": of_file(data)}
    manifest["xxh3_128"] = digest(compact(manifest).encode()).hex()
    return manifest


def main():
    path = pathlib.Path(sys.argv[2]) / "manifest.json"
    manifest = signed(sys.argv[2])
    if sys.argv[1] == "sign":
        path.write_text(json.dumps(manifest, indent=2))
    elif manifest != json.loads(path.read_text()):
        sys.exit(f"{path} is not {json.dumps(manifest, indent=2)}")
    missing = {p.name for p in path.parent.iterdir()} ^ set(manifest["files"]) ^ {"manifest.json"}
    if missing:
        sys.exit(f"{path}: {missing}")


if __name__ == "__main__":
    main()
