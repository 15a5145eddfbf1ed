"""Text of a wanted length in tokens, for a tokeniser nobody has: common words, one token each.

Byte-pair vocabularies of every family hold these words with the space in front of them, so that n
words are n tokens; what a server adds around them, and words it cuts after all, are found by asking
it.
"""

import random
from collections.abc import Hashable

# Nouns, verbs and adjectives that no vocabulary of tens of thousands of pieces lacks.
_TEXT = """
air area art back base bed big black blood blue board body book box boy building business car case
cause cell center century change child church city clear close cold college color community company
control cost country course court cup cut dark data day deal death department development door
early east economic education effect end energy event eye face fact family father field figure
final financial fire fish floor food foot force foreign form free friend full game general girl
glass gold good government great green ground group growth hair half hand hard head health heart
heavy high history home horse hot hour house human ice idea image important industry information
interest job key kind king land language large law lead left letter level library life light line
list local long love low machine main major man market material matter member method middle
military mind minute model modern money month moon mother mouth music name nature near news night
north note number object office oil old open order page paper part party past people period person
picture piece place plan plant play point policy political poor population power present president
pressure price private problem process product program project property public quality question
race radio rain rate reason record red report research rest result rich right river road rock role
room rule school science sea season second section sense series service set share ship short side
sign simple single site size skin small social soft son song sort sound source south space special
spring staff stage standard star start state station step stone store story street strong student
study subject success summer sun support surface system table teacher team term test theory thing
time top total town trade tree trial true type union unit value view voice wall war watch water way
week weight west white wide wife wind window winter woman wood word work world year young
"""
WORDS = tuple(_TEXT.split())


# How a prompt begins whose continuation matters: a model that reads sense is seldom torn between
# two tokens, and paths that only round differently then say the same.
PROSE = (
    "The lighthouse stood at the end of a long stone pier, and every evening the keeper climbed "
    "its two hundred steps to light the lamp. In winter the sea froze along the shore and no "
    "ship came for weeks. He wrote letters to his sister in the city, told her about the birds "
    "that rested on the railing, and kept a careful record of the weather: the wind, the height "
    "of the waves, the hours of fog. One night in January, when the storm was at its worst, he "
    "heard a bell. It came from the north, where there was nothing but ice, and it rang three "
    "times."
)


def text_of(num_words: int, *seed: Hashable) -> str:
    """``num_words`` words in an order that ``seed`` decides, the same in every process."""
    return " ".join(random.Random(repr(seed)).choices(WORDS, k=num_words))  # noqa: S311 - no secret
