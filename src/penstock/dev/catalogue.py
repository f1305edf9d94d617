"""The shop of the demo: products that a generator lets people click on.

`seeds/products.csv` holds the same rows for dbt; `as_csv()` writes it, and a test compares the two.
"""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, dataclass, fields
from decimal import Decimal


@dataclass(frozen=True)
class Product:
    """One row of the catalogue."""

    item_id: str
    name: str
    category: str
    brand: str
    price: Decimal


# category -> (name, brand, price); the order within a category is its popularity
_SHELVES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "coffee": (
        ("Espresso Machine Linea 15", "Bellarosa", "449.00"),
        ("Burr Grinder Fine 40", "Kornwerk", "129.90"),
        ("House Blend Beans 1 kg", "Hafenkontor", "18.50"),
        ("Milk Frother Cloud", "Bellarosa", "39.95"),
        ("Pour-Over Dripper V2", "Kiyosu", "24.00"),
        ("Gooseneck Kettle 0.9 l", "Kiyosu", "79.00"),
        ("Paper Filters, 200 pieces", "Kiyosu", "7.90"),
        ("Descaler for Espresso Machines", "Kornwerk", "11.50"),
    ),
    "running": (
        ("Road Running Shoe Tempo 3", "Sprintwell", "139.00"),
        ("Trail Running Shoe Ridge", "Fjellvei", "149.00"),
        ("Breathable Running Shirt", "Sprintwell", "34.95"),
        ("Running Shorts 5 inch", "Sprintwell", "39.95"),
        ("GPS Watch Pace S", "Orbitek", "229.00"),
        ("Hydration Vest 5 l", "Fjellvei", "89.00"),
        ("Compression Socks", "Sprintwell", "19.90"),
        ("Head Torch 400 lm", "Lumenor", "44.90"),
    ),
    "audio": (
        ("Wireless Headphones Quiet 700", "Sonavia", "279.00"),
        ("Earbuds Mini 2", "Sonavia", "99.00"),
        ("Bookshelf Speakers B6, pair", "Tonhalle", "329.00"),
        ("Turntable Direct 1", "Tonhalle", "399.00"),
        ("Portable Speaker Splash", "Sonavia", "79.90"),
        ("USB Microphone Studio One", "Voxpoint", "119.00"),
        ("Headphone Stand, oak", "Tonhalle", "29.00"),
    ),
    "home-office": (
        ("Height-Adjustable Desk 140", "Werkplatz", "489.00"),
        ("Ergonomic Chair Mesh", "Werkplatz", "359.00"),
        ("27-inch Monitor 4K", "Visiora", "319.00"),
        ("Mechanical Keyboard 75 %", "Tastwell", "109.00"),
        ("Vertical Mouse", "Tastwell", "49.90"),
        ("Monitor Arm, single", "Werkplatz", "84.00"),
        ("USB-C Dock 11-in-1", "Visiora", "139.00"),
        ("Desk Lamp with Dimmer", "Lumenor", "54.90"),
    ),
    "garden": (
        ("Cordless Hedge Trimmer 18 V", "Grünschnitt", "119.00"),
        ("Raised Bed, larch", "Hofgut", "99.00"),
        ("Tomato Seeds, mixed", "Hofgut", "4.95"),
        ("Watering Can 10 l", "Hofgut", "24.90"),
        ("Pruning Shears", "Grünschnitt", "32.50"),
        ("Potting Soil 40 l", "Hofgut", "9.90"),
        ("Solar Path Lights, 6 pieces", "Lumenor", "39.00"),
    ),
    "kitchen": (
        ("Chef's Knife 20 cm", "Klingwerk", "89.00"),
        ("Cast-Iron Casserole 5 l", "Eisenhof", "159.00"),
        ("Frying Pan 28 cm", "Eisenhof", "59.90"),
        ("Stand Mixer 5 l", "Mixaro", "299.00"),
        ("Cutting Board, walnut", "Klingwerk", "44.00"),
        ("Kitchen Scale", "Mixaro", "22.90"),
        ("Storage Jars, set of 6", "Eisenhof", "27.50"),
        ("Sharpening Stone 1000/6000", "Klingwerk", "36.00"),
    ),
    "camping": (
        ("Two-Person Tent Skarven", "Fjellvei", "249.00"),
        ("Down Sleeping Bag -5 °C", "Fjellvei", "219.00"),
        ("Inflatable Sleeping Mat", "Wildruh", "79.90"),
        ("Gas Stove Compact", "Brandal", "42.00"),
        ("Trekking Backpack 55 l", "Fjellvei", "179.00"),
        ("Water Filter Bottle", "Wildruh", "39.95"),
        ("Camping Lantern", "Lumenor", "29.90"),
    ),
    "cycling": (
        ("Gravel Bike Strada", "Veloce Nord", "1499.00"),
        ("Bike Helmet Aero", "Veloce Nord", "89.90"),
        ("Bike Lights, set", "Lumenor", "49.00"),
        ("Floor Pump with Gauge", "Radwerk", "37.90"),
        ("Puncture Repair Kit", "Radwerk", "8.90"),
        ("Handlebar Bag 5 l", "Wildruh", "54.00"),
        ("Folding Lock", "Radwerk", "74.90"),
    ),
}


def catalogue() -> list[Product]:
    """Every product; the item ids are stable."""
    return [
        Product(f"{category[:3].upper()}-{number:03d}", name, category, brand, Decimal(price))
        for category, shelf in _SHELVES.items()
        for number, (name, brand, price) in enumerate(shelf, start=1)
    ]


def as_csv() -> str:
    """The catalogue as the text of a dbt seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(field.name for field in fields(Product))
    writer.writerows(astuple(product) for product in catalogue())
    return out.getvalue()
