"""Tests of the console's files: the admin port serves the page and every file that it loads."""

from http import HTTPStatus

from tutti_gateway.reads.admin import assets


def test_the_page_and_each_file_of_the_console_are_served() -> None:
    pages = assets.table()
    assert {"/", "/console/app.js", "/console/style.css", "/console/icon.svg"} <= pages.keys()
    for path, page in pages.items():
        answer = page({})
        assert (path, answer.status) == (path, HTTPStatus.OK)
        assert answer.body
