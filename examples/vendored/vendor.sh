#!/bin/sh
copy="$(dirname "$0")/vendored_app/strategies"
rm -rf "$copy"  # a newer version may lack modules
cp -r "${1:-$(dirname "$0")/../../strategies}" "$copy"
