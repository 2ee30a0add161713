#!/bin/sh
cp -r "${1:-$(dirname "$0")/../../strategies}" "$(dirname "$0")/vendored_app/"
