#!/usr/bin/env python3
"""What scripts/lint-structure finds in small trees, with the line at which it stands. Needs Python 3 and git."""
import os
import subprocess
import tempfile
import unittest

lint = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lint-structure")
overview = """# Overview

| page | question |
|---|---|
| a page | is not a folder |

| folder | holds | uses |
|---|---|---|
| `roof` | the top | all below |
| `left` | one side | `base` |
| `right` | the other side | `base` |
| `base` | the ground | nothing |

Inside of `roof`:

| folder | holds |
|---|---|
| `roof/tiles` | what is seen |
| `roof/tiles/nails` | what they hang on |
| `roof/beams` | what carries them |
"""


class LintStructureTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        subprocess.run(["git", "init", "-q", self.folder.name], check=True)
        self.write("docs/design/overview.md", overview)

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def found(self, name, text):
        """The (line, rule) of each finding in a file with this text."""
        self.write(name, text)
        run = subprocess.run([lint], cwd=self.folder.name, capture_output=True, text=True)
        findings = [tuple(line.split(":")[:3]) for line in run.stdout.splitlines()]
        self.assertEqual(run.returncode, 1 if findings else 0, run.stdout + run.stderr)
        self.assertEqual([path for path, _, _ in findings], [name] * len(findings))
        return [(int(line), rule.strip()) for _, line, rule in findings]

    def test_downward_and_in_the_same_folder(self):
        self.assertEqual(self.found("roof/beams/a.cc", '#include "roof/beams/a.h"\n#include "left/b.h"\n'
                                    '#include "base/c.h"\n#include <roof/tiles/d.h>\n#include "elsewhere/e.h"\n'), [])

    def test_upward(self):
        self.assertEqual(self.found("base/a.h", '#pragma once\n\n#include "base/b.h"\n#include "left/c.h"\n'),
                         [(4, "upward")])
        self.assertEqual(self.found("base/a.h", "// left/c.h, and `base` beside it\n"), [])

    def test_upward_in_cuda(self):
        self.assertEqual(self.found("base/a.cu", '  #  include "roof/beams/c.cuh"\n'), [(1, "upward")])

    def test_upward_inside_of_a_folder(self):
        self.assertEqual(self.found("roof/beams/a.cc", '#include "roof/tiles/b.h"\n'), [(1, "upward")])
        self.assertEqual(self.found("roof/beams/a.cc", '#include "roof/tiles/nails/b.h"\n'), [(1, "upward")])

    def test_the_longest_row_counts(self):
        self.assertEqual(self.found("roof/tiles/nails/a.cc", '#include "roof/beams/b.h"\n#include "roof/tiles/b.h"\n'),
                         [(2, "upward")])
        self.assertEqual(self.found("roof/tiles/nails/a.cc", '#include "roof/tiles/nails/small/b.h"\n'), [])

    def test_beside_each_other(self):
        self.assertEqual(self.found("left/a.cc", '#include "right/b.h"\n'), [(1, "uses")])

    def test_a_folder_without_a_row(self):
        self.assertEqual(self.found("roof/chimney/a.cc", "\n"), [(1, "unlisted")])

    def test_folders_that_no_table_is_about(self):
        self.assertEqual(self.found("tests/a.cc", '#include "roof/tiles/b.h"\n'), [])

    def test_starpu_is_called_in_one_place(self):
        text = "#include <starpu.h>\n\nint a = starpu_init(STARPU_CPU);\n"
        self.assertEqual(self.found("base/a.cc", text), [(1, "starpu"), (3, "starpu"), (3, "starpu")])
        self.assertEqual(self.found("base/a.cc", "#include <starpu_cuda.h>\n"), [(1, "starpu")])

    def test_starpu_where_it_may_be(self):
        text = "#include <starpu.h>\n\nint a = starpu_init(STARPU_CPU);\n"
        self.write("docs/design/overview.md", overview + "| `codelets` | tasks |\n| `schedulers` | who runs them |\n")
        for path in ("codelets/runtime/a.cc", "schedulers/look_ahead.cc", "schedulers/look_ahead/b.h", "tests/a.cc"):
            self.assertEqual(self.found(path, text), [], path)
            os.remove(os.path.join(self.folder.name, path))
        self.assertEqual(self.found("schedulers/a.cc", text)[0], (1, "starpu"))

    def test_starpu_in_comments_strings_and_our_own_names(self):
        self.assertEqual(self.found("base/a.cc", '// starpu_init()\n/* starpu_init()\n   STARPU_CPU */\n'
                                    'const char* a = "STARPU_SILENT and \\"STARPU_HOME";\n'
                                    "int b = check_starpu(its.starpu_major, its->starpu_minor);\n"
                                    "struct starpu_sched_policy;\n"), [])

    def test_starpu_behind_comments_and_strings(self):
        self.assertEqual(self.found("base/a.cc", '/* one\n   two */\nint a = f("//", starpu_init());\n'),
                         [(3, "starpu")])
        self.assertEqual(self.found("base/a.cc", "char a = '\"';\nint b = starpu_init();\nchar c = '\"';\n"),
                         [(2, "starpu")])

    def test_without_a_table_it_fails(self):
        self.write("docs/design/overview.md", "# Overview\n")
        self.write("base/a.cc", "\n")
        run = subprocess.run([lint], cwd=self.folder.name, capture_output=True, text=True)
        self.assertNotEqual(run.returncode, 0)


if __name__ == "__main__":
    unittest.main()
