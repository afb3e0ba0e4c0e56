"""What columns are commonly called. Knows words, not files."""

import re
from collections.abc import Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The more telling names first. Compared in lower case without punctuation.
ROLES: dict[str, tuple[str, ...]] = {
    "user": _words(
        "userid user uid reviewerid customerid visitorid memberid accountid clientid personid profileid"
        " reviewer customer visitor member username sessionid session steamid authorid deviceid cookieid"
    ),
    "item": _words(
        "itemid item iid parentasin asin movieid movie productid product sku articleid article trackid track"
        " songid song artistid bookid book isbn businessid poiid placeid venueid videoid newsid appid gameid"
        " contentid offerid listingid recipeid animeid showid documentid docid goodsid"
    ),
    "time": _words(
        "timestamp time ts datetime eventtime eventtimestamp unixreviewtime unixtime createdat occurredat"
        " utctime playedat tdat reviewtime eventdate date day created when"
    ),
    "rating": _words("rating overall stars score rate ratings reviewscore value"),
}
_TITLE = _words("title name movietitle itemname itemtitle productname producttitle label")


def plain(name: str) -> str:
    """A column name without case and punctuation: `User_ID` and `userId` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find(role: str, columns: Sequence[str]) -> str | None:
    """The column that by its name plays a role, or None."""
    by_name = {plain(c): c for c in reversed(columns)}
    return next((by_name[n] for n in ROLES[role] if n in by_name), None)


_TIME_LIKE = re.compile(r"(?:[_\s-](?i:time|timestamp|ts|date|datetime|dt|at)|[a-z](?:Time|Timestamp|Date|At))$")


def find_time_like(columns: Sequence[str]) -> str | None:
    """The one column whose name ends like a time (order_date, seenAt), if there is just one."""
    found = [c for c in columns if _TIME_LIKE.search(c)]
    return found[0] if len(found) == 1 else None


def find_title(columns: Sequence[str]) -> str | None:
    """The column that by its name holds what people call an item."""
    by_name = {plain(c): c for c in reversed(columns)}
    return next((by_name[n] for n in _TITLE if n in by_name), None)
