"""Prompt variants to the byte, and which tokens of a training text the loss sees."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from craft.tasks.prompts import PROMPTS, encode

FIRST = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
PUBLISHED = """{first}{blanks}

                ### Instruction:
                Is {{it}} so?
{indent}
                ### Response:
                """


def test_llm_adapters_is_the_published_text_to_the_byte():
    prompt = PROMPTS["llm_adapters"]
    assert prompt.for_training("Is {it} so?") == PUBLISHED.format(first=FIRST, blanks="  ", indent=" " * 16)
    assert prompt.for_evaluation("Is {it} so?") == PUBLISHED.format(first=FIRST, blanks=" ", indent="")


def test_alpaca_has_no_indent_and_one_form():
    text = PROMPTS["alpaca"].for_training("Is it so?")
    assert text == PROMPTS["alpaca"].for_evaluation("Is it so?")
    assert text == f"{FIRST}\n\n### Instruction:\nIs it so?\n\n### Response:\n"


@pytest.mark.parametrize("name", ["alpaca", "llm_adapters"])
def test_an_input_has_its_own_part_and_marks_in_it_stay(name):
    for text in (
        PROMPTS[name].for_training("Do {input}.", "{instruction}"),
        PROMPTS[name].for_evaluation("Do {input}.", "{instruction}"),
    ):
        assert "paired with an input" in text
        assert text.index("Do {input}.") < text.index("### Input:") < text.index("{instruction}") < text.index("### Response:")


@pytest.fixture
def tokenizer():
    """Words and signs as tokens, a start token in front, as LLaMA's has."""
    words = ["<unk>", "<s>", "</s>", "what", "is", "it", "?", "the", "answer", "true", ":", "###"]
    model = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def one(tokenizer, prompt, response, **settings):
    (text,) = encode(tokenizer, [prompt], [response], **settings)
    return text


@pytest.mark.parametrize(
    ("response", "length", "loss", "tokens", "start"),
    [
        ("the answer is true", 64, "response", [1, 3, 4, 5, 6, 11, 7, 8, 4, 9, 2], 6),
        ("true", 64, "text", [1, 3, 4, 5, 6, 11, 9, 2], 1),
        ("the answer is true", 8, "response", [1, 3, 4, 5, 6, 11, 7, 8], 6),
        ("the answer is true", 6, "response", [1, 3, 4, 5, 6, 11], 6),
    ],
    ids=["response", "all but the first token", "cut at the right, without an end", "nothing of the response is left"],
)
def test_the_loss_sees(tokenizer, response, length, loss, tokens, start):
    text = one(tokenizer, "what is it ? ### ", response, max_length=length, loss=loss)
    assert (text.tokens, min(text.start, len(tokens))) == (tokens, start)


@pytest.mark.parametrize("name", ["alpaca", "llm_adapters"])
def test_a_real_tokenizer_gives_the_response_back_from_its_labels(name, stories):
    tokenizer = AutoTokenizer.from_pretrained(stories)
    prompt = PROMPTS[name].for_training("Please answer: is it so?\n\nAnswer format: true/false")
    text = one(tokenizer, prompt, "the correct answer is true", max_length=512, loss="response")
    taught = text.tokens[text.start :]
    assert taught[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(taught, skip_special_tokens=True).strip() == "the correct answer is true"
    whole = tokenizer.decode(text.tokens, skip_special_tokens=True).strip()
    assert whole == (prompt + "the correct answer is true").strip()
