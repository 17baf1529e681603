
 47dc22e01999939fcc48e92ec97d1f54acme2"photos*2020/film.mov2replaced8B÷ö‡œ¿¡¿J÷ö‡œ¿¡¿∫host-1/checker/4711