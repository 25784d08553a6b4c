"""manage.py dispatcher_token: make, list and revoke the tokens of the HTTP API."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError

from dispatcher.conf import conf
from dispatcher.errors import CallInvalid
from dispatcher.management.command import explained
from dispatcher.models import ApiToken
from dispatcher.ojs.auth import make_token


class Command(BaseCommand):
    """Make a token for NAME with SCOPES, or list them, or revoke one."""

    help = "Make a token for the HTTP API and print it once; --list shows those there are, --revoke ends one."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take a name and scopes, or what to do else."""
        parser.add_argument("name", nargs="?", help="whose token it is; its own limits are those of key token:NAME")
        parser.add_argument("scopes", nargs="*", help="send, fetch, read, admin; send:mail* for some queues only")
        parser.add_argument("--list", action="store_true", help="list the tokens, without what is secret")
        parser.add_argument("--revoke", action="store_true", help="end the token of NAME at once")

    @explained()
    def handle(self, *_: Any, **options: Any) -> None:
        """Do what is asked."""
        tokens = ApiToken.objects.using(conf().database)
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
                message = f"There is no token of {name}."
                raise CommandError(message)
            self.stdout.write(f"The token of {name} is revoked.")
            return
        if not options["scopes"]:
            message = "Give at least one scope: send, fetch, read or admin."
            raise CommandError(message)
        try:
            self.stdout.write(make_token(name, options["scopes"]))
        except CallInvalid as error:
            raise CommandError(str(error)) from error
        except IntegrityError as error:
            message = f"There is a token of {name} already; revoke it first, or take another name."
            raise CommandError(message) from error
