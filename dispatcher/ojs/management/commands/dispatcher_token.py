"""manage.py dispatcher_token: create, list and revoke tokens of the HTTP API."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError

from dispatcher.errors import CallInvalid
from dispatcher.management.command import explained
from dispatcher.ojs.auth import make_token
from dispatcher.ojs.models import ApiToken


class Command(BaseCommand):
    """Create a token for NAME with SCOPES, list all tokens, or revoke one."""

    help = "Create a token for the HTTP API and print it once; --list shows all tokens, --revoke revokes one."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the arguments."""
        parser.add_argument("name", nargs="?", help="name of the token; the key token:NAME has its own limits")
        parser.add_argument(
            "scopes",
            nargs="*",
            help="send, fetch, read, admin; send:mail* for some queues only, key:smtp* for the keys it may name",
        )
        parser.add_argument("--list", action="store_true", help="list the tokens, without the secrets")
        parser.add_argument("--revoke", action="store_true", help="revoke the token of NAME at once")

    @explained()
    def handle(self, *_: Any, **options: Any) -> None:
        """Run the command."""
        tokens = ApiToken.objects
        name = options["name"]
        if options["list"]:
            for token in tokens.order_by("name"):
                state = "active" if token.is_active else "revoked"
                self.stdout.write(f"{token.name}  {state}  {' '.join(token.scopes)}")
            return
        if not name:
            message = "Give a NAME, and scopes: manage.py dispatcher_token mailer send:mail fetch:mail"
            raise CommandError(message)
        if options["revoke"]:
            if not tokens.filter(name=name).update(is_active=False):
                message = f"There is no token named {name}."
                raise CommandError(message)
            self.stdout.write(f"The token {name} is revoked.")
            return
        if not options["scopes"]:
            message = "Give at least one scope: send, fetch, read or admin."
            raise CommandError(message)
        try:
            self.stdout.write(make_token(name, options["scopes"]))
        except CallInvalid as error:
            raise CommandError(str(error)) from error
        except IntegrityError as error:
            message = f"A token named {name} exists already; revoke it first, or choose another name."
            raise CommandError(message) from error
