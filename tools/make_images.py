#!/usr/bin/env python3
"""Writes tests/golden/media: small pictures of every kind that src/media reads, and what Pillow makes of them.

    tools/make_images.py [FOLDER]       needs Pillow, torch and torchvision (made with 13.0.0, 2.15.0, 0.29.2); nothing
                                        needs them to run the tests

NAME.png or NAME.jpg is a picture, NAME.ppm (of NAME.webp: webp_NAME.ppm) the RGB that must come out: upright (EXIF),
transparency on white.
resize_A.ppm, resize_A_WxH_FILTER.ppm: a picture and its resize by torchvision, antialiased, for
src/model/vision/image_resize_test.c. One difference from Pillow is meant: 16-bit greys give their upper half, as
16-bit colours do, where Pillow cuts greys off at 255.
"""
import os
import random
import struct
import sys
import zlib

import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack_row(values, depth):
    if depth == 16:
        return struct.pack(f">{len(values)}H", *values)
    bits = "".join(format(v, f"0{depth}b") for v in values)
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))


def png(width, height, depth, color, pixels, interlaced=False, extra=()):
    """pixels[y][x]: a tuple of channels. Rows alternate between no filter and the one by the left neighbour."""
    raw = b""
    step = max(1, CHANNELS[color] * depth // 8)
    for x0, y0, dx, dy in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        for y in range(y0, height, dy):
            row = [v for x in range(x0, width, dx) for v in pixels[y][x]]
            if not row:
                continue
            row = pack_row(row, depth)
            if y % 2:
                row = bytes((b - (row[i - step] if i >= step else 0)) & 255 for i, b in enumerate(row))
            raw += bytes([y % 2]) + row
    data = zlib.compress(raw, 9)
    half = len(data) // 2
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(chunk(k, d) for k, d in extra)
            + chunk(b"IDAT", data[:half]) + chunk(b"IDAT", data[half:]) + chunk(b"IEND", b""))


def exif(orientation, order="<"):
    mark = b"II" if order == "<" else b"MM"
    return (mark + struct.pack(order + "HIH", 42, 8, 2) + struct.pack(order + "HHII", 0x0100, 4, 1, 13)
            + struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0) + struct.pack(order + "I", 0))


def ppm(path, image):
    with open(path, "wb") as f:
        f.write(b"P6\n%d %d\n255\n" % image.size + image.convert("RGB").tobytes())


def rgb_of(path):
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode == "I;16":
        return image.point(lambda v: v / 256).convert("L").convert("RGB")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def pngs(out):
    rng = random.Random(5)
    width, height = 11, 9
    kinds = [(c, d) for c, ds in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items()
             for d in ds]
    for color, depth in kinds:
        n, top = CHANNELS[color], (1 << depth) - 1
        if color == 3:
            top = min(top, 39)
        pixels = [[tuple(rng.randint(0, top) for _ in range(n)) for _ in range(width)] for _ in range(height)]
        palette = [(b"PLTE", rng.randbytes(3 * (top + 1)))] if color == 3 else []
        name = {0: "grey", 2: "rgb", 3: "palette", 4: "grey_alpha", 6: "rgba"}[color] + str(depth)
        write = [(name, False, [])]
        if depth >= 8 or color == 3:
            write.append((name + "_interlaced", True, []))
        if color == 3 and depth == 4:
            write.append((name + "_transparent", False, [(b"tRNS", rng.randbytes(7))]))
        if color == 0 and depth in (2, 8):
            write.append((name + "_transparent", False, [(b"tRNS", struct.pack(">H", pixels[0][0][0]))]))
        if color == 2 and depth == 8:
            write.append((name + "_transparent", True, [(b"tRNS", struct.pack(">3H", *pixels[0][0]))]))
            write.append((name + "_turned", False, [(b"eXIf", exif(6, ">")), (b"gAMA", struct.pack(">I", 20000)),
                                                    (b"tEXt", b"Comment\0" + b"x" * 50)]))
        for name, interlaced, extra in write:
            with open(os.path.join(out, name + ".png"), "wb") as f:
                f.write(png(width, height, depth, color, pixels, interlaced, palette + extra))


def picture(width, height, seed):
    """Smooth with edges: what a decoder and a filter both show."""
    rng = random.Random(seed)
    image = Image.new("RGB", (width, height))
    corner = [[rng.randint(0, 255) for _ in range(3)] for _ in range(4)]
    for y in range(height):
        for x in range(width):
            u, v = x / max(1, width - 1), y / max(1, height - 1)
            c = [corner[0][i] * (1 - u) * (1 - v) + corner[1][i] * u * (1 - v) + corner[2][i] * (1 - u) * v
                 + corner[3][i] * u * v for i in range(3)]
            if (x // 5 + y // 4) % 3 == 0:
                c = [255 - t for t in c]
            image.putpixel((x, y), tuple(int(t) for t in c))
    return image


def jpegs(out):
    image = picture(21, 18, 3)
    cmyk = Image.merge("CMYK", [*image.split(), image.convert("L").point(lambda v: v // 3)])
    for name, source, options in [
            ("plain", image, {}), ("progressive", image, {"progressive": True}),
            ("full_colour", image, {"subsampling": 0, "quality": 90}), ("half_colour", image, {"subsampling": 1}),
            ("grey", image.convert("L"), {}), ("cmyk", cmyk, {}), ("restarts", image, {"restart_marker_blocks": 1})]:
        source.save(os.path.join(out, name + ".jpg"), **options)
    for i in range(1, 9):
        image.save(os.path.join(out, f"turned{i}.jpg"), exif=b"Exif\0\0" + exif(i, "<" if i % 2 else ">"))


def webps(out):
    image, rng = picture(21, 18, 3), random.Random(9)
    seen = image.copy()
    seen.putalpha(Image.frombytes("L", image.size, rng.randbytes(image.width * image.height)))
    files = [("lossless", image, {"lossless": True}), ("lossy", image, {"quality": 70}),
             ("lossless_alpha", seen, {"lossless": True}), ("lossy_alpha", seen, {"quality": 70})]
    files += [(f"turned{i}", image, {"lossless": True, "exif": exif(i, "<" if i % 2 else ">")}) for i in range(1, 9)]
    files += [("turned_jpeg_exif", image, {"lossless": True, "exif": b"Exif\0\0" + exif(6)})]
    for name, source, options in files:
        path = os.path.join(out, name + ".webp")
        source.save(path, **options)
        ppm(os.path.join(out, f"webp_{name}.ppm"), rgb_of(path))
    image.save(os.path.join(out, "animation.webp"), save_all=True, append_images=[image.rotate(90)], lossless=True)


def resized(image, width, height, mode):
    rgb = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
    rgb = rgb.reshape(image.height, image.width, 3).permute(2, 0, 1).contiguous()
    six = torch.cat([rgb, rgb])  # with three channels torch fails on pictures of one pixel
    made = functional.resize(six, [height, width], interpolation=InterpolationMode(mode), antialias=True)[:3]
    return Image.frombytes("RGB", (width, height), made.permute(1, 2, 0).contiguous().numpy().tobytes())


def resizes(out):
    for name, size, wishes in [("a", (23, 17), [(28, 28), (11, 34), (7, 5), (23, 40), (1, 1)]),
                               ("b", (3, 90), [(28, 56), (2, 7)]), ("c", (1, 1), [(3, 2)])]:
        image = picture(*size, len(name) + size[0])
        ppm(os.path.join(out, f"resize_{name}.ppm"), image)
        for w, h in wishes:
            for mode in ("bilinear", "bicubic", "lanczos"):
                ppm(os.path.join(out, f"resize_{name}_{w}x{h}_{mode}.ppm"), resized(image, w, h, mode))


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests", "golden", "media")
    os.makedirs(out, exist_ok=True)
    for old in os.listdir(out):
        os.remove(os.path.join(out, old))
    pngs(out)
    jpegs(out)
    for name in sorted(os.listdir(out)):
        ppm(os.path.join(out, os.path.splitext(name)[0] + ".ppm"), rgb_of(os.path.join(out, name)))
    webps(out)
    resizes(out)


if __name__ == "__main__":
    main()
