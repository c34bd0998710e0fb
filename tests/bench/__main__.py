"""Print every figure in one run: ``python -m tests.bench``. Nothing here asserts; ratios are what to read."""

from __future__ import annotations

from tests.bench import bench_commands, bench_line, bench_link

if __name__ == "__main__":
    bench_link.main()
    bench_line.main()
    bench_commands.main()
