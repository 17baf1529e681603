#!/bin/bash
# Makes the file tree of the image out of this machine: a small Java runtime, bash, and the
# shared libraries of both. Nothing is downloaded, and no root is needed.
#
#   root.sh JAVA_HOME ROOT
set -eu
java=$1 root=$2
mkdir -p "$root"/{usr/bin,opt,tmp,etc/kafka}
# java.desktop: log4j wants java.beans.
"$java/bin/jlink" --strip-debug --no-man-pages --no-header-files --output "$root/opt/java" --add-modules \
    java.desktop,java.logging,java.management,java.naming,java.scripting,java.security.jgss,java.security.sasl,java.sql,jdk.crypto.ec,jdk.management,jdk.unsupported
cp /bin/bash "$root/usr/bin/"
for file in /bin/bash "$root"/opt/java/bin/java "$root"/opt/java/lib/*.so "$root"/opt/java/lib/server/libjvm.so; do
    ldd "$file"
done | grep -o '/[^ ]*' | grep -v ':$' | sort -u | while read -r library; do
    case $library in "$root"/*) ;; *) install -D "$library" "$root$library" ;; esac
done
echo 'root:x:0:0:root:/:/usr/bin/bash' >"$root/etc/passwd"
