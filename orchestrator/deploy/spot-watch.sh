#!/usr/bin/env bash
# Watches for AWS's notice that this spot machine goes in two minutes, and has Ray drain it: its trials checkpoint at their next
# step and go on elsewhere. Ray's own autoscaler does not listen to the notice.
#
#   spot-watch.sh HEAD:PORT      runs until the notice comes; start it in the background, beside `ray start`
set -euo pipefail

address=${1:?give the address of the head: spot-watch.sh HEAD:PORT}
metadata=http://169.254.169.254/latest

noticed() {
    local token
    token=$(curl -sf -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/api/token") || return 1
    curl -sf -m 2 -o /dev/null -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/spot/instance-action"
}

until noticed; do
    sleep 5
done
# Five seconds may have passed before the notice was seen.
exec ray drain-node --address="$address" --reason=DRAIN_NODE_REASON_PREEMPTION \
    --reason-message='the spot machine is taken back' --deadline-remaining-seconds=110
