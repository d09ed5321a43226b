# SPDX-License-Identifier: Apache-2.0
"""Word lists and facts that the demonstration model is taught.  Plain data, written for this project."""


def _words(text):
    return sorted(set(text.split()))


def _pairs(text):
    return [tuple(part.strip() for part in line.split(":")) for line in text.replace("\n", ";").split(";") if ":" in line]


# Common English words, all lower case: spelling, counting, reversing, upper case.
WORDS = _words("""
able about above accept across act add afraid after again age ago agree air airport alarm album alive allow almost alone along
already also always amount anchor angel angle angry animal ankle answer ant apple apron arch area argue arm army around arrive
arrow art artist ask asleep attic aunt autumn avocado awake axe baby back bacon bad badge bag bake bakery ball balloon banana band
bank bar barn basket bat bath bathroom battery beach bean bear beard beat beautiful bed bedroom bee beef before begin behind
believe bell belong below belt bench berry best better between bicycle big bike bill bird birthday biscuit bite bitter black
blanket blind block blood blouse blow blue board boat body boil bone book boot border boring born borrow boss bottle bottom bowl
box boy brain branch brass brave bread break breakfast breath breeze brick bridge bright bring broom brother brown brush bubble
bucket build building bulb bunny burn bus bush business busy butter butterfly button buy cabbage cabin cable cage cake calendar
calf call calm camel camera camp candle candy canoe captain car card care careful carpet carrot carry cart castle cat catch
cattle cave ceiling cell cellar center cereal chain chair chalk champion chance change cheap cheek cheese chef cherry chess chest
chicken child chimney chin chocolate choose church cinema circle city class classroom clay clean clear clever cliff climb clock
close cloth cloud clown club coach coal coast coat cobweb coconut coffee coin cold collar collect college color comb come comet
comfort common compass computer cook cookie cool copper copy corn corner correct cost cotton couch cough count country courage
cousin cover cow crab crane crayon cream crocodile cross crowd crown cry cup cupboard curly curtain curve cushion customer cut
daily dance danger dark date daughter dawn day dead dear deep deer delicious dentist desert desk dessert diamond dictionary
different difficult dig dinner dinosaur direction dirty dish distance doctor dog doll dollar dolphin donkey door dragon draw
drawer dream dress drink drive drum dry duck dust eagle ear early earth east easy eat echo edge egg elbow elephant elevator empty
end enemy energy engine enjoy enough envelope equal evening every exam example excited exercise expensive explain eye face factory
fair fall family famous fan far farm farmer fast fat father feather feed feel fence fern festival few field fig fight fill film
find finger finish fire fish fit flag flame flat floor flour flower flute fly fog food foot football forest forget fork fountain
fox free freedom fresh friend frog front frost fruit full funny furniture future game garage garden garlic gate gentle ghost giant
gift ginger giraffe girl give glad glass globe glove glue goat gold good goose grandmother grape grass gray great green greet
grocery ground group grow guess guest guide guitar hair half hall hammer hamster hand handle happy harbor hard harvest hat hate
head healthy hear heart heat heavy hedge heel helicopter hello help hen herb hero hide high hill hippo history hobby hole holiday
honest honey hope horn horse hospital hot hotel hour house huge human hundred hungry hunt hurry husband ice idea important insect
inside invite iron island ivory jacket jam jar jaw jelly jewel job join joke journey judge jug juice jump jungle kangaroo keep
kettle key kick kid kind king kingdom kiss kitchen kite kitten knee knife knock knot know label ladder lady lake lamb lamp land
language lantern large late laugh laundry lawn lazy leader leaf learn leather leave left leg lemon lemonade lend leopard lesson
letter lettuce library lid life light like lime line lion lip list listen little lizard lobster lock long look lose loud love low
lucky lunch lung machine magazine magic magnet mail make man mango map marble market marry mask match matter meadow meal measure
meat medal medicine meet melon melt memory menu message metal middle midnight milk mill million mind minute mirror miss mistake
mix modern moment money monkey monster moon morning mosquito moss mother motor mountain mouse mouth move movie mud muscle museum
mushroom music nail name napkin narrow nature near neck needle neighbor nephew nest net never new news newspaper next nice niece
night noise noisy noodle noon north nose note notebook nothing number nurse nut oak oar object ocean octopus office often oil old
olive onion open orange orchard order other otter outside oven over owl own oyster page pain paint palace palm pan pancake panda
pants paper parade parent park parrot part party passenger past path patient paw pay peace peach peacock peanut pear pearl pen
pencil penguin people pepper perfect person phone photo piano picnic picture pie pig pigeon pillow pilot pine pineapple pink pipe
pirate pizza place plan plane planet plant plastic plate play please plum pocket poem poet point police polite pond pony pool poor
popcorn porch possible potato pound powder power present pretty price prince princess prize problem proud pudding pull pumpkin
pupil puppy purple purse push puzzle queen question quick quiet quilt rabbit race radio radish rain rainbow raisin raspberry rat
raven reach read ready real recipe red remember repair rest restaurant return ribbon rice rich ride right ring ripe river road
roast robin robot rock rocket roof room rooster root rope rose rough round rubber rug ruler run sad saddle safe sail salad salmon
salt same sand sandal sandwich sauce sausage save saw scarf school science scissors sea seal season seat second secret see seed
seek sell send serious seven shadow shallow shark sharp shave sheep sheet shelf shell shine ship shirt shoe shop short shoulder
shout shovel show shower shy sick side signal silence silk silly silver simple sing singer sink sister sit size skate skin skirt
sky sleep slice slide slow small smart smell smile smoke smooth snack snail snake snow soap soccer sock sofa soft soldier song
soon soup sour south space spade spark speak spell spend spider spinach spoon sport spring square squirrel stable stair stamp star
start station stay steak steam steel stem step stick stomach stone stop store storm story straight strange strawberry stream
street string strong student study submarine subway sugar suit suitcase summer sun sunny surprise swan sweater sweet swim swing
sword table tail tailor take talk tall tape taste taxi tea teach teacher team telephone television temple tennis tent test thank
theater thick thief thin thing think thirsty thousand thread throat throw thumb thunder ticket tie tiger tile time tiny tired toast
today toe together tomato tomorrow tongue tool tooth top tortoise towel tower town toy tractor traffic train travel treasure tree
triangle trip trouble truck true trumpet trust truth tulip tunnel turkey turn turtle twin ugly umbrella uncle under uniform
universe up use useful valley vase vegetable very vest village vinegar violet violin visit voice volcano vote wagon wait waiter
walk wall wallet walnut want warm wash wasp watch water wave weak wear weather wedding week weight well west wet whale wheat wheel
whisper whistle white wide wife wild win wind window wine wing winter wise wish wolf woman wonder wood wool word work world worm
worry write wrong yard yawn year yellow yesterday yogurt young zebra zero zipper zoo
""")

NOUNS = _words("""
apple apron arm arrow artist badge bag ball balloon banana basket bat battery bean bear bed bee belt bench berry bicycle bird
biscuit blanket boat book boot bottle bowl box boy branch brick bridge broom brother brush bucket bus bush butterfly button cabin
cake calendar camel camera candle candy captain car card carpet carrot castle cat cave chain chair cherry church circle city class
clock cloud clown coach coat coin comb computer cookie country cow crab crayon crown cup curtain daughter day desk diamond
dictionary dish doctor dog doll dolphin donkey door dragon drawer dress drum duck eagle ear egg elephant engine envelope eye
factory family farm farmer feather fence field finger flag flower flute forest fork fountain fox friend frog game garden gate
ghost giant gift girl glass globe glove goat grape guest guitar hammer hand hat hen hill holiday horse hospital hotel hour house
idea insect island jacket jar jewel joke jug key kettle king kite kitchen kitten ladder lady lake lamp lantern lemon lesson letter
library lion lizard lobster machine magnet map market mask match medal melon menu mirror monkey monster moon mountain mushroom
nail needle nest notebook number nurse ocean office onion orange orchard owl page palace pan parrot party path peach peanut pear
pencil penguin phone photo piano picture pig pillow pilot pirate planet plant plate pocket poem pond pony prize problem puppy
purse puzzle queen question rabbit radio raven recipe ribbon ring river road robot rocket roof room rope rose ruler salad sandwich
scarf school seal seat secret shadow shark ship shirt shoe shop singer sister snake sock sofa song spider spoon star station
stone storm story street student suitcase sweater table tail taxi teacher temple tent ticket tiger toe towel tower town toy train
tree triangle truck trumpet tulip tunnel turtle umbrella uncle valley vase village violin volcano wagon wall wallet watch wave
week whale wheel window wing winter witch zebra
""")

# More nouns whose plural is asked for.
MORE_NOUNS = _words("""
airport album anchor angel angle animal ankle ant arch area army aunt axe baby bakery band bank bar barn bath bathroom beach beard bedroom bell belly
bill birthday block blouse bone border boss bottom brain breakfast breath breeze building bulb bunny business cabbage cable cage call camp canoe cart cellar
cell center chance change chef chest chicken chimney chin cinema classroom cliff club coast cobweb coconut collar college comet compass copy corner couch cousin
cover crane crocodile crowd cupboard curve cushion customer dance danger date dentist desert dessert dinner dinosaur direction distance dollar dream drink edge
elbow elevator enemy evening exam example exercise face fan farm fern festival fig film fire fly frame freezer future giraffe grandmother group guide hall
hamster handle harbor harvest head heart hedge heel helicopter herb hippo history hobby hole horn husband insect jaw jelly journey judge jungle kangaroo kid
kingdom kiss knee knot label lamb land language lawn leader lemonade leopard lid light line lip list lock lunch lung magazine mango marble meadow meal message
meter middle mile mill million mind minute mistake moment mosquito motor mouth movie muscle museum name napkin neck neighbor nephew niece night noise noodle nose note
nut oak oar object octopus olive otter oven oyster pain pancake panda paper parade parent park part passenger paw peacock pearl pepper picnic pie pigeon pine
pipe pizza place plan plum point porch potion pound present price prince princess pudding pumpkin pupil race radish raisin rat reason reader restaurant robin
rock rooster root rug saddle sail sandal sauce sausage saw sea season second seed shape sheet shell shoulder shovel shower side signal silk singer sink
size skirt sky slice slide smell smile snack snail soldier soup spade spark speech spring square squirrel stable stair stamp stem step stick story stream string
study submarine subway suit summer swan swing sword tailor taste team telephone television tractor test thing thread throat thumb tie tile tongue
tool top tortoise treasure trip twin uniform universe vegetable vest visit voice vote waiter walk walnut wasp wedding weight wheel wind wine wish
wizard wood word worker world worm yard yawn year zipper zoo baby city lady party pony puppy penny berry cherry story fairy daisy enemy body country
""")

IRREGULAR_PLURALS = dict(child="children", man="men", woman="women", mouse="mice", goose="geese", foot="feet", tooth="teeth",
                         person="people", leaf="leaves", knife="knives", wolf="wolves", sheep="sheep", fish="fish", wife="wives",
                         shelf="shelves", calf="calves", potato="potatoes", tomato="tomatoes", hero="heroes", half="halves",
                         life="lives", loaf="loaves", thief="thieves", ox="oxen", deer="deer", echo="echoes")

NAMES = _words("""
Ada Adam Alice Amir Amy Ana Andrea Anna Anton Arthur Ben Bianca Boris Bruno Carla Carlos Carmen Cecil Chen Clara Claire Daniel David
Dora Edgar Elena Eli Ella Emil Emma Erik Eva Fatima Felix Fiona Flora Frank Freda George Gina Greta Hana Harry Hassan Hector
Helen Henry Hugo Ida Igor Ines Ingrid Irene Isaac Ivan Jack Jana Jane Jasmin Jean Joel John Jonas Julia Karim Karl Kate Kim Lara
Laura Lea Leo Lena Liam Lily Linda Lisa Louis Lucas Lucy Luna Mara Marco Maria Marie Mark Martin Max Maya Mia Miguel Mila Mina
Moses Nadia Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Pavel Paula Peter Petra Philip Pia Rachel Ralph Rana Ravi Rita Robert
Rosa Ruth Sally Sam Samir Sara Simon Sofia Stefan Stella Sven Tara Theo Thomas Tim Tina Tom Uma Vera Victor Walter Wanda Will Yara
Yusuf Zara Zoe
""")

SURNAMES = _words("""
Adams Baker Bauer Becker Berg Black Brown Carter Clark Cole Cook Costa Cruz Davis Diaz Dixon Evans Fischer Ford Fox Garcia Gomez
Grant Gray Green Hall Harris Hill Horn Hughes Jensen Jones Keller King Klein Kovac Lane Larsen Lee Lewis Lopez Marsh Martin Meyer
Miller Mills Moore Moreno Nelson Novak Olsen Park Perez Petrov Price Reed Ricci Rivera Rossi Roth Santos Silva Smith Stone Taylor
Torres Turner Vega Wagner Walker Ward Weber White Wood Wright Young Zimmer
""")

CAPITALS = _pairs("""
France:Paris;Germany:Berlin;Italy:Rome;Spain:Madrid;Portugal:Lisbon;Austria:Vienna;Switzerland:Bern;Belgium:Brussels
Netherlands:Amsterdam;Denmark:Copenhagen;Norway:Oslo;Sweden:Stockholm;Finland:Helsinki;Iceland:Reykjavik;Ireland:Dublin
Poland:Warsaw;Hungary:Budapest;Greece:Athens;Turkey:Ankara;Russia:Moscow;Ukraine:Kyiv;Romania:Bucharest;Bulgaria:Sofia
Croatia:Zagreb;Serbia:Belgrade;Slovakia:Bratislava;Slovenia:Ljubljana;Estonia:Tallinn;Latvia:Riga;Lithuania:Vilnius
Albania:Tirana;Malta:Valletta;Cyprus:Nicosia;Japan:Tokyo;China:Beijing;India:New Delhi;Thailand:Bangkok;Vietnam:Hanoi
Indonesia:Jakarta;Malaysia:Kuala Lumpur;Nepal:Kathmandu;Pakistan:Islamabad;Bangladesh:Dhaka;Mongolia:Ulaanbaatar
South Korea:Seoul;Philippines:Manila;Iran:Tehran;Iraq:Baghdad;Jordan:Amman;Lebanon:Beirut;Qatar:Doha;Egypt:Cairo
Morocco:Rabat;Tunisia:Tunis;Kenya:Nairobi;Ghana:Accra;Nigeria:Abuja;Ethiopia:Addis Ababa;Senegal:Dakar;Uganda:Kampala
Zambia:Lusaka;Canada:Ottawa;Mexico:Mexico City;Cuba:Havana;Jamaica:Kingston;Panama:Panama City;Brazil:Brasilia
Argentina:Buenos Aires;Chile:Santiago;Peru:Lima;Colombia:Bogota;Ecuador:Quito;Uruguay:Montevideo;Venezuela:Caracas
Australia:Canberra;New Zealand:Wellington;Fiji:Suva
""")
NEEDS_THE = {"Netherlands", "Philippines"}

CITIES = sorted({capital for _, capital in CAPITALS} | set("""Hamburg Munich Milan Naples Turin Venice Barcelona Seville Valencia
Porto Lyon Nice Marseille Geneva Zurich Basel Bergen Krakow Odessa Osaka Kyoto Shanghai Mumbai Delhi Chicago Boston Seattle Denver
Dallas Houston Miami Toronto Montreal Vancouver Sydney Melbourne Perth London Leeds Oxford Glasgow Dubai Lagos Nagoya Graz Ghent
Leipzig Bremen Cologne Bonn Salzburg Utrecht Malmo Tampere Gdansk""".split()))

OPPOSITES = _pairs("""
hot:cold;big:small;fast:slow;up:down;left:right;day:night;black:white;old:new;happy:sad;rich:poor;open:closed;hard:soft;wet:dry
long:short;high:low;heavy:light;strong:weak;early:late;full:empty;clean:dirty;loud:quiet;near:far;good:bad;true:false;win:lose
buy:sell;push:pull;give:take;love:hate;first:last;inside:outside;begin:end;awake:asleep;thick:thin;wide:narrow;deep:shallow
sweet:sour;brave:afraid;safe:dangerous;easy:difficult;cheap:expensive;summer:winter;east:west;north:south;alive:dead
rough:smooth;sharp:blunt;bright:dim;always:never;before:after;above:below;remember:forget;arrive:leave;laugh:cry
beautiful:ugly;polite:rude;question:answer;friend:enemy;war:peace;young:aged;tall:tiny;ancient:modern;yes:no;hello:goodbye
""")

ELEMENTS = _pairs("""
hydrogen:H;helium:He;lithium:Li;beryllium:Be;boron:B;carbon:C;nitrogen:N;oxygen:O;fluorine:F;neon:Ne;sodium:Na;magnesium:Mg
aluminium:Al;silicon:Si;phosphorus:P;sulfur:S;chlorine:Cl;argon:Ar;potassium:K;calcium:Ca;titanium:Ti;chromium:Cr;manganese:Mn
iron:Fe;cobalt:Co;nickel:Ni;copper:Cu;zinc:Zn;arsenic:As;bromine:Br;krypton:Kr;silver:Ag;tin:Sn;iodine:I;xenon:Xe;tungsten:W
platinum:Pt;gold:Au;mercury:Hg;lead:Pb;radon:Rn;uranium:U
""")

COLORS_OF = _pairs("""
the sky:blue;grass:green;snow:white;coal:black;a banana:yellow;a ripe tomato:red;blood:red;a lemon:yellow;a carrot:orange
an orange:orange;milk:white;chocolate:brown;a plum:purple;the sun:yellow;a flamingo:pink;a crow:black;a frog:green;an elephant:gray
a strawberry:red;the sea:blue;a cucumber:green;a polar bear:white;a pumpkin:orange;gold:yellow;a raven:black;ivory:white
a violet:purple;a cherry:red;spinach:green;a fire engine:red;soil:brown;salt:white;a pea:green;honey:golden;ash:gray
""")
COLOR_MIX = [("red", "yellow", "orange"), ("blue", "yellow", "green"), ("red", "blue", "purple"), ("black", "white", "gray"),
             ("red", "white", "pink")]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ANIMALS = [  # name, legs, sound, young, home
    ("dog", 4, "barks", "puppy"), ("cat", 4, "meows", "kitten"), ("cow", 4, "moos", "calf"), ("horse", 4, "neighs", "foal"),
    ("sheep", 4, "bleats", "lamb"), ("pig", 4, "oinks", "piglet"), ("duck", 2, "quacks", "duckling"), ("hen", 2, "clucks", "chick"),
    ("lion", 4, "roars", "cub"), ("frog", 4, "croaks", "tadpole"), ("bee", 6, "buzzes", "larva"), ("owl", 2, "hoots", "owlet"),
    ("wolf", 4, "howls", "pup"), ("bear", 4, "growls", "cub"), ("goat", 4, "bleats", "kid"), ("goose", 2, "honks", "gosling"),
    ("snake", 0, "hisses", "hatchling"), ("mouse", 4, "squeaks", "pup"), ("deer", 4, "bellows", "fawn"), ("donkey", 4, "brays", "foal"),
    ("ant", 6, None, "larva"), ("spider", 8, None, "spiderling"), ("fish", 0, None, "fry"), ("kangaroo", 2, None, "joey"),
    ("elephant", 4, "trumpets", "calf"), ("rabbit", 4, None, "kit"), ("swan", 2, None, "cygnet"), ("tiger", 4, "roars", "cub"),
    ("butterfly", 6, None, "caterpillar"), ("eagle", 2, None, "eaglet"), ("zebra", 4, None, "foal"), ("monkey", 2, None, "infant")]
QUANTITIES = _pairs("""
days in a week:7;months in a year:12;hours in a day:24;minutes in an hour:60;seconds in a minute:60;days in a year:365
weeks in a year:52;letters in the alphabet:26;sides of a triangle:3;sides of a square:4;sides of a hexagon:6
fingers on a hand:5;wheels on a bicycle:2;wheels on a car:4;items in a dozen:12;cents in a dollar:100;years in a century:100
years in a decade:10;meters in a kilometer:1000;grams in a kilogram:1000;centimeters in a meter:100;seasons in a year:4
planets in the solar system:8;continents on Earth:7;strings on a violin:4;players in a soccer team:11
""")
KINDS = _pairs("""
apple:fruit;banana:fruit;cherry:fruit;grape:fruit;mango:fruit;peach:fruit;carrot:vegetable;onion:vegetable;spinach:vegetable
cabbage:vegetable;dog:animal;horse:animal;tiger:animal;elephant:animal;rose:flower;tulip:flower;daisy:flower;oak:tree;pine:tree
maple:tree;hammer:tool;saw:tool;screwdriver:tool;piano:instrument;violin:instrument;flute:instrument;trumpet:instrument
red:color;blue:color;green:color;salmon:fish;tuna:fish;shark:fish;eagle:bird;owl:bird;penguin:bird;ant:insect;bee:insect
gold:metal;iron:metal;copper:metal;shirt:piece of clothing;sock:piece of clothing;jacket:piece of clothing;milk:drink;tea:drink
coffee:drink;Mars:planet;Venus:planet;Saturn:planet;Paris:city;London:city;Tokyo:city;France:country;Japan:country;Brazil:country
""")

ITEMS = _words("""apples bananas books bottles boxes buttons candles carrots chairs coins cookies cups eggs flowers forks grapes hats
keys lamps lemons letters melons notebooks onions oranges pears pencils pens pillows plates potatoes roses shirts shoes socks spoons
stamps stones tickets tomatoes towels toys umbrellas""")
FOODS = _words("bread cheese pasta pizza rice salad soup sushi tacos curry noodles pancakes chocolate honey fish beans toast stew")
HOBBIES = _words("chess painting swimming reading hiking cooking dancing singing running gardening fishing cycling skating sailing "
                 "drawing knitting climbing photography")
JOBS = _words("doctor teacher nurse pilot farmer baker painter singer lawyer driver cook writer gardener engineer dentist waiter "
              "plumber carpenter tailor librarian")
TOPICS = _words("football music trains history space cooking gardens whales volcanoes robots castles weather chess birds cheese "
                "islands rivers bridges coffee bicycles museums painting poetry maps clocks dinosaurs penguins ships gold salt")
EVENTS = _words("meeting party lunch dinner concert lesson workshop picnic wedding exam interview game walk match breakfast")
ROOMS = ["kitchen", "bedroom", "bathroom", "office", "garage", "hall", "garden", "cellar", "attic", "living room"]
TITLE_WORDS = _words("Silent River Golden Forest Winter Garden Lost Island Blue Mountain Last Train Hidden House Red Lantern Little "
                     "Stone Dark Sea Broken Clock Secret Bridge Glass Tower White Horse Paper Moon Old Sky Burning Star")
CONDITIONS = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear"]
LANGUAGES = ["French", "German", "Italian", "Spanish", "Japanese", "Polish", "Turkish", "Greek", "Swedish", "Dutch"]
