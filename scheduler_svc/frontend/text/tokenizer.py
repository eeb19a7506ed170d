"""Text <-> token ids for one model, and what its files say about sampling and about where answers end.

Built on the `tokenizers` library and not on transformers: importing AutoTokenizer imports torch where torch is
installed (2.5 s measured), and the scheduler service never imports torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import tokenizers
from msgspec import Meta

from common.errors import CheckpointError, RequestRejected
from common.model_reading import check_regular, read_model_json
from common.tokenizer_file import MAX_VOCAB_SIZE, library_fault, read_tokenizer_file, text_growth
from common.vocabulary import checked_vocab_size
from scheduler_svc.frontend.text.chat_template import ChatTemplate, special_tokens_of
from scheduler_svc.frontend.text.detokenizer import Detokenizer, decoding_of, token_byte_table
from scheduler_svc.frontend.text.sampling_defaults import read_sampling_defaults
from scheduler_svc.frontend.text.template_program import Ending
from scheduler_svc.frontend.text.token_bound import characters_per_token
from scheduler_svc.frontend.text.token_texts import TokenTexts

CHARACTERS_AT_ONCE = 2**18
MAX_GROWN_CHARS = 2**23  # of a text with its replacements: as long as a body may be
PROBE = (
    "The year 2024:\n\t«naïve» 你好 🙂 -- it's (a+b)*c;   " + 64 * "a" + "!"
)  # characters of all kinds, and many of one
MESSAGE_TAGS = frozenset({b"<think>", b"</think>", b"<tool_call>", b"</tool_call>"})


TokenId = Annotated[int, Meta(ge=0, lt=MAX_VOCAB_SIZE)]
EosTokens = TokenId | Annotated[list[TokenId], Meta(max_length=64)]
Size = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _ModelConfig(msgspec.Struct, frozen=True):
    """What a frontend reads in config.json."""

    vocab_size: Any = None
    hidden_size: Size | None = None
    max_position_embeddings: Size | None = None
    eos_token_id: EosTokens | None = None


class Tokenizer:
    """One model's tokenizer, chat template, sampling defaults and end-of-sequence tokens.

    Attributes:
        folder: of the model.
        token_bytes: what each token stands for; special tokens are absent.
        all_token_bytes: the same with special tokens.
        message_token_bytes: the same with those special tokens alone that divide a message: its text is taken apart at
            them, whatever the tokenizer calls them.
        token_lengths: bytes of each of these, int32 [vocabulary].
        token_texts: single tokens as text.
        characters_per_token: at most; None if that cannot be known.
        special_tokens: ids of special tokens, by their texts.
        opening_id: token that the tokenizer adds before each text; None if it adds none.
        closing_ids: tokens that it adds after each text.
        eos_token_ids: tokens that end a text: those of generation_config.json, of config.json and of
            tokenizer_config.json, which often know one each.
        max_positions: of a sequence, as config.json says; 0 if it does not.
        hidden_size: values of a hidden state, as config.json says; 0 if it does not.
        sampling_defaults: of requests that say nothing.
        chat_template: of the model, if it has one.

    Args:
        folder: holds tokenizer.json and config.json; tokenizer_config.json, generation_config.json and
            chat_template.jinja if the model has them.
        chat_template: file with the template that takes the place of the model's.
        sampling: what takes the place of generation_config.json's values, checked.

    Raises:
        CheckpointError: a file is missing or cannot be used.
    """

    def __init__(
        self, folder: Path, chat_template: Path | None = None, sampling: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, path = folder, folder / "tokenizer.json"
        content = read_tokenizer_file(folder)
        if content is None:
            raise CheckpointError(_why_none(folder))
        self._growth = text_growth(content)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(content))
        except BaseException as error:
            raise CheckpointError(f"{path} cannot be read: {library_fault(error)}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = read_model_json(folder / "config.json", _ModelConfig) or _ModelConfig()
        settings = read_model_json(folder / "tokenizer_config.json", dict) or {}
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_tokens = {token.content: i for i, token in added.items() if token.special}
        special = {i: token.content.encode() for i, token in added.items() if token.special}
        decoder = content.get("decoder") or {}
        self.token_bytes = token_byte_table(self._tokenizer.get_vocab(with_added_tokens=True), special, decoder)
        self._drops_space = decoding_of(decoder).drops_space
        self.all_token_bytes = self.token_bytes | special
        tags = {i: token for i, token in special.items() if token in MESSAGE_TAGS}
        self.message_token_bytes = self.token_bytes | tags if tags else self.token_bytes
        self.token_texts = TokenTexts(self.all_token_bytes)
        self.characters_per_token = characters_per_token(content, self.token_bytes.values())
        self.max_positions = config.max_position_embeddings or 0
        self.hidden_size = config.hidden_size or 0
        own_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        stated = own_size if config.vocab_size is None else config.vocab_size
        self.vocab_size = checked_vocab_size(folder / "config.json", stated)
        self.token_lengths = np.array([len(self.all_token_bytes.get(i, b"")) for i in range(self.vocab_size)], np.int32)
        generation = read_model_json(folder / "generation_config.json", dict) or {}
        own_eos = self._tokenizer.token_to_id(special_tokens_of(settings).get("eos_token", ""))
        self.eos_token_ids = self._ends(*_eos_token_ids(folder, generation, config), own_eos)
        recommended = {**generation, **(sampling or {})}
        self.sampling_defaults = read_sampling_defaults(recommended, str(folder / "generation_config.json"))
        self.chat_template = ChatTemplate.of_model(folder, settings, chat_template)
        self.opening_id: int | None = None
        try:
            self.encode([PROBE], add_special_tokens=True)
            opening, self.closing_ids = self._added_ids()
            self.opening_id = opening[0] if len(opening) == 1 else None
        except RequestRejected as error:
            raise CheckpointError(f"{path} cannot be used: {error}") from error

    @cached_property
    def chat_eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a chat's answer: also the special token, if it is one, that the chat template writes directly
        after an assistant's content. Blocks where the template has not been asked: `start_rendering` asks it."""
        after = "" if self.chat_template is None else self.chat_template.after_answer()
        written = [token for token in self.special_tokens if token and after.startswith(token)]
        return self._ends(*self.eos_token_ids, *(self.special_tokens[token] for token in sorted(written, key=len)[-1:]))

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text. Raises RequestRejected if one is not Unicode (JSON can hold half a character), if the
        tokenizer fails on it, or could make it too long.

        A text that begins with the token that is put before each, as one does that a chat template has written, has it
        once.
        """
        if self._growth > 1 and (longest := max(map(len, texts), default=0)) * self._growth > MAX_GROWN_CHARS:
            raise RequestRejected(
                f"a text has {longest} characters, of which the model's tokenizer can make {self._growth} times as "
                f"many; the limit is {MAX_GROWN_CHARS}"
            )
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError as error:
            raise RequestRejected(f"a text is not valid Unicode: {error.reason}") from error
        ids: list[list[int]] = []
        for some in portions(texts):
            try:
                # Not `encode`: it holds the GIL, for seconds on a long text (measured), and computes offsets.
                encodings = self._tokenizer.encode_batch_fast(some, add_special_tokens=add_special_tokens)
            except BaseException as error:
                raise RequestRejected(f"the model's tokenizer fails on this text: {library_fault(error)}") from error
            ids += [encoding.ids for encoding in encodings]
        if add_special_tokens and self.opening_id is not None:
            twice = [self.opening_id] * 2
            ids = [each[1:] if each[:2] == twice else each for each in ids]
        return ids

    def _ends(self, *token_ids: int | None) -> tuple[int, ...]:
        """Those that the model can generate, each once."""
        return tuple(dict.fromkeys(i for i in token_ids if i is not None and i < self.vocab_size))

    def whole_text(self) -> Detokenizer:
        """A detokenizer for a text from its beginning, special tokens included."""
        return Detokenizer(self.all_token_bytes, drops_space=self._drops_space)

    def _added_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the tokenizer puts before a text's own tokens, and after them."""
        [own] = self.encode(["a"], add_special_tokens=False)
        [whole] = self.encode(["a"], add_special_tokens=True)
        starts = [start for start in range(len(whole)) if whole[start : start + len(own)] == own]
        return (tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(own) :])) if starts and own else ((), ())

    def start_rendering(self) -> None:
        """Start the process that renders chats, if the model has a chat template, and ask where its answers end. Raises
        CheckpointError if it cannot be compiled, and HelperUnavailable."""
        if self.chat_template is not None:
            _ = self.chat_template.variables
        _ = self.chat_eos_token_ids

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        ending: Ending = "answer",
    ) -> str:
        """A conversation in the model's own format. It has all special tokens. Blocks: another process renders it.

        Args:
            messages, tools: as in OpenAI's API, as plain dicts.
            variables: further variables of the template (`enable_thinking`, ...).
            ending: where it ends; it is ready for the assistant's answer if nothing else is asked.

        Raises:
            RequestRejected: the model has no chat template, or the template refuses the conversation or cannot
                render it within its limits.
        """
        if self.chat_template is None:
            raise RequestRejected("this model has no chat template; use /v1/completions (baton generate)")
        return self.chat_template.render(messages, tools, variables, ending)


def _why_none(folder: Path) -> str:
    """Say what is missing where there is no tokenizer.json."""
    if folder.is_file():
        return f"{folder} has no tokenizer: there is no tokenizer.ggml.model in it"
    if not check_regular(folder / "tokenizer.model"):
        return f"{folder} has no tokenizer.json"
    return (
        f"{folder} has a tokenizer.model and no tokenizer.json, which alone is read: transformers makes one, by "
        f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    )


def portions(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts, some at a time: an encoding takes a hundred bytes for each character until its ids are taken."""
    portion: list[str] = []
    num_characters = 0
    for text in texts:
        if portion and num_characters + len(text) > CHARACTERS_AT_ONCE:
            yield portion
            portion, num_characters = [], 0
        portion.append(text)
        num_characters += len(text)
    if portion:
        yield portion


def _eos_token_ids(folder: Path, generation: Mapping[str, Any], config: _ModelConfig) -> list[int]:
    """Tokens that end a text, as generation_config.json and config.json have them."""
    try:
        stated = msgspec.convert(generation.get("eos_token_id"), EosTokens | None)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{folder / 'generation_config.json'} has eos_token_id {generation['eos_token_id']!r:.80}: {error}"
        ) from error
    both = (stated, config.eos_token_id)
    return [i for eos in both if eos is not None for i in ([eos] if isinstance(eos, int) else eos)]
