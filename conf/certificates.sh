#!/bin/sh
# Creates a certificate authority and the certificates of gateways with openssl. Not needed where your organisation issues certificates.
#   sh certificates.sh jfk:10.0.0.1 lga:10.0.0.2 ewr:10.0.0.3        (NAME:HOST of each gateway, HOST as in `listen` or `advertise`)
# The files are in the directory of this script. ca.pem is for clients. tls/NAME.pem and tls/NAME.key are for the host of gateway NAME.
# ca.key can issue certificates: keep it off the gateways. A second run keeps the authority, and issues new certificates for one year.
set -eu
[ $# -gt 0 ] || { echo "usage: sh $0 NAME:HOST..." >&2; exit 2; }
cd "$(dirname "$0")"
mkdir -p tls
new_key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"

if [ ! -e ca.key ]; then
    # shellcheck disable=SC2086 - the options of new_key are separate words
    openssl req -x509 $new_key -days 3650 -subj "/CN=Tutti certificate authority" \
        -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.pem
fi
for gateway in "$@"; do
    name=${gateway%%:*}
    host=${gateway#*:}
    host=${host#[} host=${host%]}
    # Clients compare an address with the IP entries of a certificate, and a name with its DNS entries.
    case $host in
        *:*) entry=IP:$host ;;
        *[!0-9.]*) entry=DNS:$host ;;
        *) entry=IP:$host ;;
    esac
    # shellcheck disable=SC2086
    openssl req $new_key -subj "/CN=$name" -keyout "tls/$name.key" -out "tls/$name.request"
    openssl x509 -req -in "tls/$name.request" -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 \
        -extfile /dev/stdin -out "tls/$name.pem" <<EXTENSIONS
subjectAltName = $entry
authorityKeyIdentifier = keyid
basicConstraints = critical, CA:FALSE
EXTENSIONS
    rm "tls/$name.request"
done
