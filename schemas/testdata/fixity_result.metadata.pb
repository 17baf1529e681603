
 c1f5a0a77cf04d3c8f5d3c64e0d1a4e9 37dc22e01999939fcc48e92ec97d1f54"acme*22photos:2020/film.movBfileHPXbpasshp“÷ö‡œ¿¡¿⁄
◊ö‡œ¿Ñ=êö3media type video/quicktime, 2 properties: by, title