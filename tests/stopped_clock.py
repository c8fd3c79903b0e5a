"""Stops all clocks of a running process on x86-64: its threads run on, and each look at a clock shows the same moment.

Programs read clocks by code that the kernel maps into them, the vDSO. A jump to some code of ours takes its place, until the clocks go on.
"""

import struct
import time

SYMBOL = b"__vdso_clock_gettime\0"
# The clocks of clock_gettime(2), by number.
CLOCKS = 16
# lea rax, [rip + 29]; and edi, 15; shl edi, 4; mov rdx, [rax + rdi]; mov [rsi], rdx; mov rdx, [rax + rdi + 8]; mov [rsi + 8], rdx; xor eax, eax; ret; and the table.
CODE = bytes.fromhex("488d051d000000" "83e70f" "c1e704" "488b1438" "488916" "488b543808" "48895608" "31c0" "c3").ljust(36, b"\x90")
JUMP = b"\xe9"


class StoppedClock:
    """Clocks of a process that stand still until `go_on`."""

    def __init__(self, process):
        self.process = process
        begin, end = mapped(process)
        with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            image = memory.read(end - begin)
            entry = address_of(image)
            # Behind all that the image uses, up to the end of its last page.
            place = len(image.rstrip(b"\0")) + 64 & ~15
            code = CODE + b"".join(now(clock) for clock in range(CLOCKS))
            if place + len(code) > len(image):
                raise OSError("the vDSO has no room")
            self.entry, self.before = begin + entry, image[entry:entry + 5]
            memory.seek(begin + place)
            memory.write(code)
            self.write(memory, JUMP + struct.pack("<i", place - entry - 5))

    def write(self, memory, code):
        memory.seek(self.entry)
        memory.write(code)

    def go_on(self):
        with open(f"/proc/{self.process}/mem", "r+b", buffering=0) as memory:
            self.write(memory, self.before)


def mapped(process):
    for line in open(f"/proc/{process}/maps"):
        if line.endswith("[vdso]\n"):
            return tuple(int(word, 16) for word in line.split()[0].split("-"))
    raise OSError("the process has no vDSO")


def address_of(image):
    """The address of the function in an ELF image."""
    at, size, count = struct.unpack_from("<Q", image, 40)[0], *struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQII", image, at + size * number) for number in range(count)]
    for kind, offset, length, link in ((it[1], it[4], it[5], it[6]) for it in sections):
        names = sections[link][4]
        for symbol in range(offset, offset + length, 24) if kind == DYNAMIC_SYMBOLS else ():
            name, value = struct.unpack_from("<I", image, symbol)[0], struct.unpack_from("<Q", image, symbol + 8)[0]
            if image.startswith(SYMBOL, names + name):
                return value
    raise OSError("the vDSO has no clock")


def now(clock):
    try:
        nanos = time.clock_gettime_ns(clock)
    except OSError:
        nanos = 0
    return struct.pack("<qq", *divmod(nanos, 10 ** 9))


DYNAMIC_SYMBOLS = 11
