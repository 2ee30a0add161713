"""What nodes write, cut to a length and freed of control characters."""

from fedapps.strategies.checks import MAX_CHARACTERS, is_valid_name, truncate
from hypothesis import example, given
from hypothesis import strategies as st


def test_the_end_of_a_traceback_stays():
    text = "Traceback (most recent call last):\n" + 'File "app.py"\n' * 1000 + "ValueError: the lens is dirty"
    cut = truncate(text)
    assert cut.startswith("Traceback")
    assert cut.endswith('File "app.py"\n  | ValueError: the lens is dirty')
    assert f"[... {len(text) - MAX_CHARACTERS} characters left out ...]" in cut


def test_control_characters_are_written_out():
    assert truncate("\x1b[2J\tred\r\n\u202eend") == "\\x1b[2J\tred\\r\n  | \\u202eend"


@given(st.text(max_size=300))
@example("fine\nWARNING : refused the train reply of node car-7: NaN")
@example("fine\r\nINFO : forged")
@example("fine\u2028INFO : forged\x0b\x85")
def test_no_text_begins_a_line_of_the_log(text):
    lines = truncate(text).splitlines()
    assert all(line.startswith("  | ") for line in lines[1:])
    assert truncate(truncate(text)) == truncate(text), "a text may pass several times"


@given(st.text(max_size=300), st.integers(4, 100))
def test_the_length_is_bounded_and_what_is_short_stays(text, most):
    cut = truncate(text, most)
    assert len(cut) <= 10 * (most + 50)
    assert all(sign.isprintable() or sign in "\n\t" for sign in cut)
    if len(text) <= most and text.isprintable():
        assert cut == text


def test_names():
    assert all(map(is_valid_name, ["a", "house 12/b", "żółw", "x" * 200]))
    assert not any(map(is_valid_name, ["", "x" * 201, "a\nb", "\x00", 3, None, ["a"]]))
