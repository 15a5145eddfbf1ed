"""A handbook to try with, for those who bring none: the policies of a shop for tools.

About 5,150 tokens in every vocabulary, all its sentences different, always the same text.
"""

from collections.abc import Iterator

_PRODUCTS = (
    # name, months of warranty, days to return, days a repair takes, what is not covered
    ("cordless drill", 36, 30, 10, "chucks that were struck"),
    ("hammer drill", 36, 30, 10, "bits, and dust seals worn by concrete"),
    ("angle grinder", 24, 30, 12, "discs, and guards that were taken off"),
    ("circular saw", 24, 30, 12, "blades, and base plates bent by a fall"),
    ("jigsaw", 24, 30, 9, "blades, and rollers clogged with resin"),
    ("table saw", 60, 14, 21, "riving knives that were left off"),
    ("mitre saw", 48, 14, 18, "fences that were drilled through"),
    ("random orbit sander", 24, 30, 8, "pads and sheets"),
    ("belt sander", 24, 30, 11, "belts, and tracking bent by a nail"),
    ("router", 36, 30, 13, "collets, and cutters of other makers"),
    ("planer", 36, 30, 13, "knives that met metal"),
    ("heat gun", 18, 30, 7, "nozzles, and elements run without air"),
    ("soldering station", 24, 30, 6, "tips and sponges"),
    ("air compressor", 36, 14, 20, "hoses, and tanks that were never drained"),
    ("nail gun", 24, 14, 15, "drivers bent by the wrong nails"),
    ("pressure washer", 24, 14, 14, "lances, and pumps that froze"),
    ("wet and dry vacuum", 24, 30, 10, "bags and filters"),
    ("hedge trimmer", 36, 30, 10, "blades that met wire, and chargers left in the rain"),
    ("lawn mower", 36, 14, 16, "blades, and decks cleaned with a hose"),
    ("chainsaw", 24, 14, 15, "chains and bars"),
    ("leaf blower", 24, 30, 9, "tubes that were cut short"),
    ("grass strimmer", 24, 30, 9, "line, spools and guards"),
    ("garden shredder", 24, 14, 19, "knives, and jams caused by roots"),
    ("water pump", 24, 30, 12, "impellers that ran dry"),
    ("generator", 36, 14, 24, "fuel that stood for a season"),
    ("welding set", 36, 14, 17, "torches, clamps and helmets"),
    ("laser level", 24, 30, 13, "calibration after a fall"),
    ("moisture meter", 12, 30, 5, "pins"),
    ("work lamp", 24, 30, 5, "glass"),
    ("tool chest", 120, 30, 8, "paint, and locks that were forced"),
    ("ladder", 60, 30, 6, "feet and ropes"),
    ("scaffold tower", 60, 14, 10, "planks that were sawn"),
    ("cement mixer", 24, 14, 16, "drums that were never washed"),
    ("tile cutter", 24, 30, 9, "wheels and water trays"),
    ("paint sprayer", 18, 30, 9, "needles clogged with dry paint"),
    ("pipe bender", 36, 30, 12, "formers used for other pipe"),
    ("torque wrench", 24, 30, 11, "calibration after two years"),
    ("socket set", 300, 60, 4, "sockets used with an impact driver"),
    ("bench vice", 120, 30, 7, "jaws that were hammered on"),
    ("anvil", 600, 60, 30, "edges"),
    ("wheelbarrow", 36, 30, 4, "tyres and bearings that were never greased"),
    ("log splitter", 24, 14, 22, "wedges, and oil of another grade"),
    ("rotary hammer", 36, 30, 14, "chisels, and grease that was never changed"),
)

_OPENING = """\
Handbook of the support desk. It is the same for every customer and every channel. Answer from \
it alone: where it does not speak, say so and hand the case on. Quote the article you answer \
from. Never promise a date that it does not give, and never take the customer's side or the \
shop's against what is written here.

1. Returns. A return is a wish to give an article back that works. It needs the receipt, or the \
card that paid, or the order's number. The days run from delivery, not from the order, and end \
at midnight in the customer's own time. Articles that were used may come back if they are clean \
and whole; what use has taken from their value is kept back, at most a fifth. Opened oil, paint, \
adhesive and anything cut to measure do not come back. A business customer may return whole \
orders and whole lines of an order, not parts of a line. The customer pays the way back unless \
we sent the wrong thing. Money goes back the way it came, within fourteen days of the article's \
arrival.

2. Missing and damaged parcels. What was missing from a parcel must be told within seven days; \
we send it at our cost on the same day if it is in stock and otherwise when it is, and no later \
than three weeks. Damage that can be seen is told to the driver, other damage to us within seven \
days, with two pictures: one of the article and one of the parcel with its label.

3. Repairs. A repair begins when the article is at the workshop and its fault has been seen. The \
workshop writes to the customer on the first day, on the day it is done, and whenever a part \
must be waited for. If a repair takes more than four weeks the customer may have a loan machine \
of the same class, or the price of renting one for as long as it takes. A third repair for the \
same fault is none: the article is exchanged.

4. Rentals. A rental day is twenty-four hours from the counter. A machine that fails within the \
first two hours is exchanged and the whole day is free; one that fails later is exchanged and \
the hours lost are. Fuel and wear are the customer's, blades and discs by measure. A deposit is \
given back at once when the machine is clean.

5. Who decides. The desk decides on up to 150 euros, the shift's lead on up to 500, the head of \
support on up to 2,500, and the board on what is more. Threats, injuries, fires and anything \
that a lawyer or a newspaper writes go to the head of support at once, whatever the sum. A case \
that has been with one person for three working days without an answer to the customer goes one \
step up.

6. Numbers and plates. An article whose serial number cannot be read is covered if the receipt \
names it and the workshop finds the same model and year inside. An article whose plate was taken \
off is not covered.

7. Articles one by one.
"""

_CLOSING = """\
8. What to say first. Greet by name, say which article of this handbook speaks, say what will \
happen and when, and ask for nothing that the order already tells. If two articles speak against \
each other the later one holds, except that nothing here takes away what the law gives.
"""


def handbook() -> str:
    """The text."""
    return "\n".join((_OPENING, *_articles(), "", _CLOSING))


def _articles() -> Iterator[str]:
    for number, (name, months, days, repair_days, excluded) in enumerate(_PRODUCTS, 1):
        yield (
            f"7.{number} The {name} has {months} months of warranty from the day it was delivered, "
            f"half of that for hire and trade. It may be returned within {days} days. A repair "
            f"takes {repair_days} working days at most once it is in the workshop. Not covered are "
            f"{excluded}. Spare parts are kept for {7 + number % 4} years after the last one was "
            f"sold. Its manual is document {4_100 + 37 * number}; questions that it answers are "
            f"answered with its page."
        )
