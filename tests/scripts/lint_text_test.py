#!/usr/bin/env python3
"""What scripts/lint-text finds on small pages, with the line at which it stands. Needs Python 3 alone."""
import os
import subprocess
import tempfile
import unittest

lint = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lint-text")
# Six sentences of sixteen words, so that the rules for whole pages apply.
plain_page = "# Page\n\n" + "\n".join(
    "The %s sentence of this page has sixteen words and says nothing more than this here." % word
    for word in ("first", "second", "third", "fourth", "fifth", "sixth")) + "\n"


class LintTextTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def found(self, text, name="page.md"):
        """The (line, rule) of each finding on a page with this text."""
        path = os.path.join(self.folder.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        run = subprocess.run([lint, name], cwd=self.folder.name, capture_output=True, text=True)
        findings = [tuple(line.split(":")[1:3]) for line in run.stdout.splitlines()]
        self.assertEqual(run.returncode, 1 if findings else 0, run.stdout + run.stderr)
        return [(int(line), rule.strip()) for line, rule in findings]

    def test_a_plain_page_has_nothing(self):
        self.assertEqual(self.found(plain_page), [])

    def test_short_and_long_sentences_on_average(self):
        self.assertEqual(self.found("It is too short.\n" * 6), [(1, "sentences")])
        self.assertEqual(self.found(("word " * 22 + "end.\n") * 6), [(1, "sentences")])

    def test_few_sentences_are_not_averaged(self):
        self.assertEqual(self.found("It is too short.\n" * 5), [])

    def test_one_sentence_of_more_than_forty_words(self):
        self.assertEqual(self.found("word\n" * 39 + "end.\n"), [])
        self.assertEqual(self.found("A good start it is.\n\n" + "word\n" * 40 + "end.\n"), [(3, "long")])

    def test_an_item_of_a_list_ends_a_sentence(self):
        self.assertEqual(self.found(("- " + "word\n  " * 30 + "\n") * 2), [])

    def test_numbers(self):
        page = plain_page + "It took 1 or 2 or 3,000 or 4.5 or 6 seconds in all.\n"
        self.assertEqual(self.found(page), [(1, "numbers")])

    def test_names_code_and_tables_are_no_numbers(self):
        page = plain_page + "An H100 in bf16 with `--batch 1,2,3` runs well enough for us all here.\n\n| 1 | 2 | 3 |\n"
        self.assertEqual(self.found(page), [])

    def test_history(self):
        page = plain_page + "\nIt is faster now.\n\n| Before | after |\n"
        self.assertEqual(self.found(page), [(10, "history"), (12, "history")])
        self.assertEqual(self.found("He knows `now` it is.\n\n```\nbefore\n```\n"), [])

    def test_columns(self):
        self.assertEqual(self.found("x" * 120 + "\n| " + "y" * 200 + " |\n"), [])
        self.assertEqual(self.found("\n" + "x" * 121 + "\n"), [(2, "columns")])

    def test_cells(self):
        self.assertEqual(self.found("| a |\n| " + "word " * 41 + " |\n"), [(2, "cell")])

    def test_code_is_not_prose(self):
        self.assertEqual(self.found("```\n" + "word " * 20 + "\n" + "word " * 23 + "\n```\n"), [])

    def test_links(self):
        self.found("# Known thing\n\nIt is here.\n", "docs/known.md")
        self.assertEqual(self.found("See [a](docs/known.md#known-thing) and [b](https://x.y/z).\n"), [])
        self.assertEqual(self.found("\nSee [a](docs/unknown.md).\n"), [(2, "link")])
        self.assertEqual(self.found("See [a](docs/known.md#other).\n"), [(1, "link")])

    def test_records_may_say_anything_but_lead_nowhere(self):
        self.assertEqual(self.found("It was slower before.\n" + "1 2 3 4 " * 40, "docs/records/old.md"), [])
        self.assertEqual(self.found("[a](none.md)\n", "docs/records/old.md"), [(1, "link")])


if __name__ == "__main__":
    unittest.main()
