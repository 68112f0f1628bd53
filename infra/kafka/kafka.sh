#!/usr/bin/env bash
# A real Apache Kafka (KRaft: every node is broker and controller) from its Maven jars, on loopback only.
#
#   kafka.sh fetch                  the jars, once (44 MB)
#   kafka.sh start [--brokers N] [--secure]
#                                   N nodes, 1 unless told; returns when all listen.  --secure: clients come
#                                   by TLS with a password (SASL_SSL, SCRAM), as the file client.env says,
#                                   made for you to `source`; so it stays until `reset`
#   kafka.sh status                 a line a node; exit status 1 unless all are up
#   kafka.sh kill NODE              kill -9 of one node; `start` brings it back
#   kafka.sh stop                   all nodes, cleanly
#   kafka.sh reset                  end all nodes at once and delete what they hold
#
# KAFKA_PORT        port of node 1 (9092); node i listens on it + i - 1, its controller 100 further
# KAFKA_HOME_LOCAL  folder of the nodes (infra/kafka/.kafka)
# KAFKA_LIB         folder of the jars ($KAFKA_HOME_LOCAL/lib)
# KAFKA_HEAP        JVM heap of a node (-Xms128m -Xmx384m)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${KAFKA_HOME_LOCAL:-$here/.kafka}
lib=${KAFKA_LIB:-$home/lib}
first_port=${KAFKA_PORT:-9092}
secure=$home/secure  # there after --secure: the nodes' certificate, the clients' settings
read -ra heap <<< "${KAFKA_HEAP:--Xms128m -Xmx384m}"
install="apt-get install -y openjdk-17-jre-headless maven"
cluster=TWtyYWZ0S2Fma2FMb2NhbA  # fixed: a random id may begin with '-', which the tool takes for an option

die() { echo "kafka.sh: $*" >&2; exit 1; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
need() { command -v "$1" > /dev/null || die "$1 is missing; install it as root: $install"; }

port() { echo $((first_port + $1 - 1)); }
controller_port() { echo $((first_port + $1 + 99)); }
folder() { echo "$home/node$1"; }
nodes() { local d; for d in "$home"/node*; do [ -d "$d" ] && echo "${d##*node}"; done; return 0; }
listens() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

pid_of() { cat "$(folder "$1")/pid" 2> /dev/null; }
alive() {  # by its own command line: the number may belong to another process by now
  local pid; pid=$(pid_of "$1") || return 1
  tr "\\0" " " 2> /dev/null < "/proc/$pid/cmdline" | grep -c -F "$(folder "$1")/server.properties" > /dev/null
}

fetch() {
  ls "$lib"/kafka_2.13-*.jar > /dev/null 2>&1 && return
  need java; need mvn
  local part="$lib.part$$"
  mkdir -p "$(dirname "$lib")"
  mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$part" \
    || { rm -rf "$part"; die "Maven could not fetch the jars: see above; is its repository reachable?"; }
  # all or nothing, also where two fetch at once: the first to be done wins
  mv -T "$part" "$lib" 2> /dev/null || rm -rf "$part"
}

jvm() {  # jvm NODE CLASS ARGUMENT...; the JVM itself expands "$lib/*"
  local node=$1; shift
  exec java "${heap[@]}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true \
    -Djava.awt.headless=true -Dkafka.logs.dir="$(folder "$node")" \
    -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$lib/*" "$@"
}

certify() {  # one certificate for all nodes, its own authority, and what a client needs
  local password line; password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  rm -rf "$secure.part"; mkdir -p "$secure.part"
  (
    umask 077; cd "$secure.part"
    keys() {
      keytool -storepass "$password" -storetype PKCS12 -keystore node.p12 -alias node "$@" 2> keytool.log \
        || { cat keytool.log >&2; die "keytool $1 failed: see above"; }
    }
    keys -genkeypair -keyalg EC -groupname secp256r1 -validity 3650 -dname CN=localhost \
      -ext SAN=dns:localhost,ip:127.0.0.1 -ext bc:critical=ca:true
    keys -exportcert -rfc > ca.pem
    for line in SECURITY_PROTOCOL=SASL_SSL SASL_MECHANISM=SCRAM-SHA-512 SASL_USERNAME=headrace \
      "SASL_PASSWORD=$password" "SSL_CAFILE=$secure/ca.pem"
    do printf 'export KAFKA_%q\n' "$line"; done > client.env
  )
  mv "$secure.part" "$secure"
}

password() { sed -n 's/^export KAFKA_SASL_PASSWORD=//p' "$secure/client.env"; }

secure_properties() {
  local mechanism password; password=$(password)
  printf '%s\n' "ssl.keystore.location=$secure/node.p12" "ssl.keystore.password=$password" \
    ssl.truststore.type=PEM "ssl.truststore.location=$secure/ca.pem" \
    ssl.client.auth=requested sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512 \
    sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
  for mechanism in 256 512; do
    printf 'listener.name.sasl_ssl.scram-sha-%s.sasl.jaas.config=' $mechanism
    printf 'org.apache.kafka.common.security.scram.ScramLoginModule required username="headrace" '
    printf 'password="%s";\n' "$password"
  done
}

configure() {  # configure NODE COUNT
  local node=$1 count=$2 i voters="" dir protocol=PLAINTEXT users=(); dir=$(folder "$node")
  [ ! -d "$secure" ] || protocol=SASL_SSL
  for i in $(seq "$count"); do voters+="${voters:+,}$i@127.0.0.1:$(controller_port "$i")"; done
  mkdir -p "$dir/data"
  sed -e "s|@NODE@|$node|g; s|@PORT@|$(port "$node")|g; s|@CONTROLLER_PORT@|$(controller_port "$node")|g" \
    -e "s|@DATA@|$dir/data|g; s|@VOTERS@|$voters|g" \
    -e "s|@PROTOCOL@|$protocol|g; s|@REPLICAS@|$count|g; s|@IN_SYNC@|$((count > 1 ? 2 : 1))|g" \
    "$here/server.properties.tmpl" > "$dir/server.properties"
  if [ -d "$secure" ]; then
    chmod 600 "$dir/server.properties"; secure_properties >> "$dir/server.properties"
    for i in 256 512; do users+=(--add-scram "SCRAM-SHA-$i=[name=headrace,password=$(password)]"); done
  fi
  [ -f "$dir/data/meta.properties" ] && return
  (jvm "$node" kafka.tools.StorageTool format --cluster-id="$cluster" \
    --config "$dir/server.properties" "${users[@]}") \
    > "$dir/format.log" 2>&1 || { cat "$dir/format.log" >&2; die "node $node: storage not formatted"; }
}

await() {  # until NODE listens, at most 60 s
  local node=$1 i
  for i in $(seq 300); do
    listens "$(port "$node")" && return
    alive "$node" || [ "$i" -lt 5 ] || break
    sleep 0.2
  done
  tail -30 "$(folder "$node")/out.log" >&2
  die "node $node does not listen on port $(port "$node"): see above"
}

start() {
  local count=1 certified= there i
  while [ $# -gt 0 ]; do
    case $1 in
      --brokers) [[ ${2:-} =~ ^[1-9]$ ]] || usage; count=$2; shift 2 ;;
      --secure) certified=yes; shift ;;
      *) usage ;;
    esac
  done
  need java; fetch
  there=$(nodes | wc -l)
  if [ -n "$certified" ] && [ ! -d "$secure" ]; then
    [ "$there" -eq 0 ] || die "$home holds nodes that are not secure; \`kafka.sh reset\` deletes them"
    need keytool; certify
  fi
  [ "$there" -eq 0 ] || [ "$there" -eq "$count" ] \
    || die "$home holds $there node(s), $count asked for; \`kafka.sh reset\` deletes them"
  for i in $(seq "$count"); do
    alive "$i" && continue
    ! listens "$(port "$i")" || die "port $(port "$i") is taken; set KAFKA_PORT to a free one"
    configure "$i" "$count"
    (jvm "$i" kafka.Kafka "$(folder "$i")/server.properties") \
      > "$(folder "$i")/out.log" 2>&1 < /dev/null &
    echo $! > "$(folder "$i")/pid"
  done
  for i in $(seq "$count"); do await "$i"; done
  echo "Kafka on 127.0.0.1:$first_port, $count node(s), in $home"
  [ ! -d "$secure" ] || echo "TLS and a password are asked for: source $secure/client.env"
}

stop() {
  local i pid
  for i in $(nodes); do if alive "$i"; then kill "$(pid_of "$i")"; fi; done
  for i in $(nodes); do
    for _ in $(seq 75); do alive "$i" || break; sleep 0.2; done
    if alive "$i"; then
      pid=$(pid_of "$i"); echo "node $i ignores SIGTERM for 15 s: kill -9" >&2; kill -9 "$pid"
    fi
    rm -f "$(folder "$i")/pid"
  done
}

reset() {  # nothing of it is kept: no need to stop cleanly, which may take 15 s
  local i
  for i in $(nodes); do if alive "$i"; then kill -9 "$(pid_of "$i")"; fi; done
  for i in $(nodes); do while alive "$i"; do sleep 0.05; done; rm -rf "$(folder "$i")"; done
  rm -rf "$secure"
}

status() {
  local i down=0 there; there=$(nodes)
  [ -n "$there" ] || { echo "no node in $home"; exit 1; }
  for i in $there; do
    if alive "$i"; then echo "node $i up on 127.0.0.1:$(port "$i")"; else echo "node $i down"; down=1; fi
  done
  exit $down
}

case "${1:-} ${2:-}" in
  "fetch ") fetch ;;
  "start "*) shift; start "$@" ;;
  "stop ") stop ;;
  "reset ") reset ;;
  "status ") status ;;
  "kill "[1-9]) alive "$2" || die "node $2 is not up"; kill -9 "$(pid_of "$2")" ;;
  *) usage ;;
esac
