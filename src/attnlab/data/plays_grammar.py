"""The words, sentence frames and order of lines of the embedded corpus `plays`: data alone.

A frame is a text with slots: `{noun}` is replaced by one choice of the rule `noun`, and `{!end}`
writes nothing but changes the scene (plays.py says how). A line of a rule is its weight, an
integer, and then the frame; lists of words are parted by spaces, phrases by `/`. All of it was
written for this project.

Short words make a text with more to learn in a line. Frames that begin alike are one frame with
a rule for the rest, and no line begins with a slot that the scene fills: both keep the automaton
small, for it must remember every reading that is still open.
"""

from __future__ import annotations

# No name begins another: what a name changes in the scene must be certain once it has been read.
WOMEN = """Ada Beth Cleo Dora Edith Flora Greta Ivy Joan Lucy Mab Nell Olive Ruth Una Wren
Zoe"""
MEN = """Abel Basil Colin Dirk Egon Felix Guy Hugo Jack Kit Leo Miles Ned Otto Pip Quin Rolf Sam
Tom Vane Wat Yves"""

PLACES = """abbey bakery barn bridge cellar chapel court dairy ferry forge garden hall harbour inn
island kitchen library market meadow orchard palace prison quarry ship stable tavern tower
workshop"""
PROPS = """anchor apple basket candle drum fiddle goblet hammer jug kite ladder lantern letter
mirror needle oar parcel pie quill ribbon sack scroll spade sword trumpet umbrella wheel
whistle"""

WORDS: dict[str, str] = {
    "noun": """ash axe bag bed bee bell boat bone book boot bow box bread brook bud cake cap cart
cave chair clay cliff clock cloud coal coat coin cord corn cow crow crown cup dawn deer dew door
dove dress dust ear egg elm eye fern field fig fire fish flag flea flute foam fog fort fox frog
gate gem glass glove goat gold grass grave hare harp hat hay hen hill hive hole horn horse house
ice ink iron jar jewel key kiln lake lamb lamp leaf lime lion loaf log loom lute map maze mill moon
moss moth mouse mud nail nest net nut oak oven owl path pea pear pearl pig pin pipe plum pond pool
purse rain ram raven reed reef ring river road rock roof rope rose rug salt sand sea seed shell
shoe silk skull sky snow soap sock song soup spoon star stone storm straw sun swan table tent thorn
toad tomb tree vase veil vine wagon wall wasp wave wax whale wind wine wolf wool worm yard
yew""",
    "being": """ape aunt baker bard bride child clerk cook duke elf fool friar giant groom guard
heir imp jester judge king knight lad lady lord maid mayor miller monk nun nurse page pilot piper
poet prince queen rogue sailor saint scout scribe seer serf smith spy squire tailor thief twin
uncle vicar weaver widow witch""",
    "adj": """bent big bitter black blind blue blunt bold brave broken burnt busy calm cold common
cool cruel cursed daft damp dark deaf deep dim dry dull dusty empty fair fat fine flat foul fresh
frozen full glad gold green grey grim hard high hollow holy hot humble idle kind late lazy lean
long lost loud low mad meek merry mild muddy mute new noble odd old pale plain poor proud quick
quiet rare raw red rich ripe rough round royal rusty sad salty sharp short shy sick slow sly small
smooth soft sour stale stern stolen strong sweet swift tame thin torn vain warm weak wet white wide
wild wise young""",
    "does": """aches begs bends bites blinks bows burns chokes coughs cracks crawls creeps cries
dances dies dives dozes dreams drips droops fades falls fights flees flies floats frets fumes glows
gnaws grins groans growls grows hides hops howls hums itches jumps kneels laughs leaks leaps lies
limps lurks melts moans mopes nods prays purrs quakes raves reels rests rings rises roars rolls
rots runs rusts sags sails sighs sings sinks sits sleeps slips smiles snores sobs sulks sways swims
talks thaws trots turns waits wakes walks weeps whines wilts winks yawns yells""",
    "do": """ask bake beat bend bind bite bless boil break bring brush burn bury buy call carry
catch chase chew choose clean climb cook count cover curse cut deny dig draw drop dry dye eat fear
feed fetch fight find fix follow forge free fry gild greet grind guard hang hate haul heal hear
help hide hire hold hunt keep kick kiss know lead leave lift lock lose love lure melt mend mock
move name need obey own paint pay pity plant pluck praise pull push roast rob rule save seek sell
sew shake share shun sink spare spoil steal stir stop swap sweep take tame taste thank tie toss
touch trade trust tug turn wake warn wash watch weigh win wrap""",
    "abstract": """anger art beauty custom danger death debt doubt duty envy faith fame fate fear
folly grace greed grief guilt haste hope hunger joy justice law love luck malice mercy mirth music
peace pity power pride reason rest sense shame silence sin skill sleep sorrow thirst time truth
valour virtue war wealth wit wonder youth zeal""",
    "feeling": """afraid alone angry ashamed asleep awake calm cold content curious eager early
free glad guilty happy hungry idle ill late lost merry mortal proud ready rich right safe sorry
sure tired weary well wrong""",
    "how": """again alone apart badly boldly bravely coldly daily dearly ever first gladly gravely
hard kindly last less lightly long loudly madly more nobly often once oddly quickly rudely
sadly slowly softly soon sweetly then there today too twice warmly well wisely""",
    "did": """bit broke fed fought found held led lost met rang robbed saw sold stole tamed
woke""",
    "near": """above across after against among at before behind below beside beyond by for in like
near on over past through under upon with without""",
    "things": """apples bells birds boats books cats crows dogs doves ducks eggs flies fools geese
goats hats jars keys kings lies mice nuts oxen pies pigs plums pots rats ravens roses sheep shoes
sins songs sons spoons stars swans swords tales wasps wolves""",
    "number": "two three four five six seven eight nine ten twelve twenty forty sixty",
    "limb": "arm beard brow cheek chin ear elbow eye fist foot hand head heel knee lip nose",
    "la": """bim bo da de di dilly dum fa fol hey hi ho la lo lully na nonny ola pom ri rol rum ta
ti tra tum wo""",
}
PHRASES: dict[str, str] = {
    "hour": """at dawn/at noon/at dusk/at midnight/by moonlight/by night/in the morning/in the
        evening/in May/in winter/on a Monday/on Sundays/after the rain/after supper/before
        breakfast/during Lent/once a year/in a storm""",
    "oath": """Alas/Ay/Away/Behold/Bless me/Upon my word/By Jove/Fie/Hark/Hush/Indeed/Marry/Nay/
No/O joy/O misery/Peace/Pray/So/Tut/Well said/Woe is me/Yes""",
    "friend": "friend/cousin/my heart/my dear/old man/good soul/fool/wretch/sir/you rascal/love",
}

FRAMES = {
    "thing": """3 {noun}
        1 {being}""",
    "described": """3 {thing}
        6 {adj} {thing}
        4 {adj} {adj} {thing}""",
    "np": """12 the {described}
        4 my {described}
        4 your {described}
        1 this {place}
        1 {abstract}""",
    "object": """8 {np}
        2 {number} {things}
        2 {number} {adj} {things}
        1 both {np} and {np}""",
    "statement": """9 The {described} {does}{doing}
        5 My {described} {does}{doing}
        3 Your {described} {does}{doing}
        2 This {described} is {being so}
        7 I {wish}
        3 You {wish}
        3 We {wish}
        2 If {np} {does}, {command}
        2 When {np} {does}, {np} {does}.
        2 Where {abstract} {does}, {abstract} {does}.
        4 Let {np} {do} {object}.
        2 There are {number} {things} {near} {np}.
        2 No {thing} {does}{doing}
        2 They say {np} {does}{doing}
        2 O {adj} {thing}, O {adj} {thing}!
        2 It was {object}, not {object}.
        2 Neither {abstract} nor {abstract} can {do} {object}.
        2 More {abstract}, less {abstract}; more {things}, less {thing}.
        3 Once {number} {adj} {things} {did} {np}.
        2 Even this {place} {does}{doing}
        3 Dear {other}, {command}
        3 Come, {other}, {command}
        2 Go, {other}, and {command}
        2 By {np}, {other}, I {wish}
        2 Not even {speaker} can {do} {object}.
        3 'Tis {being so}
        7 {oath}{outcry}
        6 Sing {la} {la} {la}, {la} {la} {la}, {la} {la}!""",
    "outcry": """4 , {command}
        3 ! {Adj} {thing}, {adj} {thing}!""",
    "doing": """5  {near} {np}.
        2  {hour}.
        2  {how}, and {np} {does}{doing}
        3  {how}.
        1 , {friend}!
        1 : {command}""",
    "wish": """4 {do} {object}.
        3 {do} {object}, and {do} {object}.
        2 would {do} {object}, but who will {do} {object}?
        2 must {do} {object} {hour}.
        2 will {do} {object}; then {command}
        2 never {do} {object} {near} {np}.
        1 can {do} {object} and {do} {object}, {friend}.
        1 saw {object} {near} {object}.""",
    "being so": """3 {adj}, {adj} and {adj}.
        3 {adj} {abstract}, {friend}.
        2 {feeling} {hour}.
        2 {np} {near} {np}.
        1 {abstract}, or {abstract}, or {abstract}.""",
    "command": """4 {do} {object}.
        3 {do} {object}, {friend}!
        2 {do} {np} {near} {np}.
        2 {do} it {how}, or {do} it {how}.
        1 be {feeling}, be {feeling}!""",
    # The question mark stands in {asked}: the noun is certain only when that has been read.
    "question": """5 Where is {the} {asked}
        4 Who will {do} {the} {asked}
        2 Will you {do} {object} for {the} {asked}
        2 Good {other}, who {does} {near} {the} {asked}
        2 Tell me, {other}, have you seen {the} {asked}
        2 Is it {feeling} to {do} {the} {asked}
        2 Why should I {do} {the} {asked}
        1 What {does} {near} {the} {asked}
        1 How {adj}, dear {other}, is {the} {asked}
        1 Must we {do} {np} for {the} {asked}""",
    "the": """2 the
        3 the {adj}
        1 your {adj}
        1 my {adj}""",
    "answer": """4 Why, the {topic} {does}{doing}
        3 What, my {topic}? It {does}{doing}
        2 Do not speak of the {topic}, {friend}.
        3 As for the {topic}, {command}
        2 Ask not for the {topic}, but {do} {object}.
        2 Some {adj} {being} sold the {topic} for {number} {things}.
        2 Oh, that {topic} is {being so}""",
    "keeping": """3 See, I hold the {prop}, and I {wish}
        2 With this {prop} I {wish}
        2 Here is the {prop}, {other}: {command}
        1 Look, {other}, how my {prop} {does}{doing}""",
    "wanting": """3 Give me the {prop}, {holder}, or {command}
        2 Does {holder} {do} the {prop} for {np}?
        2 That {prop}, {holder}, {does}{doing}
        1 For the {prop} I would {do} {object}.""",
    "deed": """2 {does} {near} {np}.
        2 {does} {how}.
        2 lifts {his} {limb}.
        2 hides {his} {limb} {near} {his} {limb}.
        2 looks {how} at {another}.
        1 shakes hands with {another}.
        3 points at {object}.""",
    "giving": """4 gives the {prop} to {taker}.
        7 {deed}""",
}

# The order of lines in a play. The scene chooses between "after two" and "after three" present.
FLOW: dict[str, list[tuple[int, str]]] = {
    "play": [
        (1, "SCENE: {setting} {hour}.\n[Enter {enter} with {burden} and {company}.]\n\n{header}")
    ],
    "company": [(3, "{enter}"), (2, "{enter} and {enter}")],
    "say": [(1, "{statement}\n{after}")],
    "keep": [(1, "{keeping}\n{after}")],
    "want": [(1, "{wanting}\n{after}")],
    "reply": [(1, "{answer}\n{after}")],
    "ask": [(1, "{question}\n\n{header}")],
    "after two": [
        (10, "{line}"),
        (8, "\n{header}"),
        (2, "[{mover} {moving}]\n{resume}"),
        (1, "[Enter {enter}.]\n{resume}"),
        (2, "[Exeunt {everyone}, with the {prop}.]\n\n{!end}{play}"),
    ],
    "after three": [
        (10, "{line}"),
        (8, "\n{header}"),
        (2, "[{mover} {moving}]\n{resume}"),
        (1, "[Exit {leaver}.]\n\n{header}"),
        (2, "[Exeunt {everyone}, with the {prop}.]\n\n{!end}{play}"),
    ],
    "resume": [(2, "{line}"), (3, "\n{header}")],
}
